// Review: pairs are decided on by mouse or keyboard. Cards are made when they come into view, so that thousands of pairs
// stay fast. Decisions are kept in localStorage and saved to a file; nothing is sent anywhere.
(() => {
  const STEP = 40;
  const VERDICTS = [["same", "s"], ["different", "d"], ["skip", "x"]];
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  for (const root of document.querySelectorAll("div.review")) {
    const items = JSON.parse(root.querySelector(".review-data").textContent);
    const find = (name) => root.querySelector(name);
    const [list, more, kindBox, openBox, words] =
      [".review-list", ".more", ".review-kind", ".review-open", ".words"].map(find);
    const store = `antipodes-audit ${root.dataset.store}`;
    const decisions = new Map(); // number of an item -> verdict
    const keyOf = (item) => JSON.stringify([item.a, item.b].sort());
    const numberOf = new Map(items.map((item, number) => [keyOf(item), number]));
    const texts = items.map((item) => [...item.names, ...item.texts, ...item.labels, item.kind].join(" ").toLowerCase());
    const cards = new Map(); // number of an item -> its card
    const groups = new Map(); // number of a group -> numbers of its items
    items.forEach(({ group }, number) => {
      if (group >= 0) groups.set(group, [...(groups.get(group) || []), number]);
    });
    let fitting = [], current = -1, unsaved = false;

    items.forEach((item, number) => { if (item.decision) decisions.set(number, item.decision); });
    try {
      const kept = JSON.parse(localStorage.getItem(store) || "[]");
      for (const [key, verdict] of kept) {
        const number = numberOf.get(key);
        if (number === undefined) continue;
        if (verdict) decisions.set(number, verdict); else decisions.delete(number);
      }
    } catch { /* a browser may keep nothing for files */ }

    const remember = () => {
      unsaved = true;
      const changed = items.map((item, number) => [keyOf(item), decisions.get(number) || ""])
        .filter(([, verdict], number) => verdict !== (items[number].decision || ""));
      try { localStorage.setItem(store, JSON.stringify(changed)); } catch { /* the file remains */ }
    };

    const state = () => {
      const counts = { same: 0, different: 0, skip: 0 };
      for (const verdict of decisions.values()) counts[verdict] += 1;
      const bar = find(".review-progress");
      bar.max = Math.max(items.length, 1);
      bar.value = decisions.size;
      find(".review-state").textContent = `${decisions.size} of ${items.length} decided: ${counts.same} same, ` +
        `${counts.different} different, ${counts.skip} skipped${unsaved ? ", not saved to a file yet" : ""}`;
    };

    // A text in which words that the other text lacks are marked, if at least half of the words are in both.
    const compared = (text, other) => {
      const block = make("blockquote", "text");
      const left = new Map();
      for (const word of other.toLowerCase().split(/\s+/)) left.set(word, (left.get(word) || 0) + 1);
      const parts = text.split(/(\s+)/).map((part) => {
        const word = part.toLowerCase(), count = left.get(word) || 0;
        if (count) left.set(word, count - 1);
        return [part, !count && Boolean(part.trim())];
      });
      const few = parts.filter(([, isNew]) => isNew).length * 4 <= parts.length + 1; // half of the parts are spaces
      for (const [part, isNew] of parts) block.append(isNew && few ? make("mark", "", part) : part);
      return block;
    };

    const side = (item, place) => {
      const figure = make("figure");
      if (item.images[place] >= 0) {
        const image = make("img");
        image.alt = item.names[place];
        image.loading = "lazy";
        image.src = pictures[item.images[place]];
        figure.append(image);
      } else if (!item.texts[place]) figure.append(make("div", "none", "no picture"));
      if (item.texts[place]) figure.append(compared(item.texts[place], item.texts[1 - place]));
      const name = item.names[place], cut = name.lastIndexOf("/") + 1;
      const caption = make("figcaption", "", name.slice(0, cut));
      caption.append(make("span", "file", name.slice(cut)));
      if (item.labels[place]) caption.append(make("span", "caption", item.labels[place]));
      figure.append(caption);
      return figure;
    };

    const mark = (number) => {
      const card = cards.get(number);
      if (!card) return;
      for (const button of card.querySelectorAll(".verdicts button"))
        button.setAttribute("aria-pressed", String(decisions.get(number) === button.dataset.verdict));
      card.dataset.decision = decisions.get(number) || "";
    };

    const decide = (numbers, verdict) => { // once more takes it back
      const isDone = numbers.every((number) => decisions.get(number) === verdict);
      for (const number of numbers) {
        if (isDone) decisions.delete(number); else decisions.set(number, verdict);
        mark(number);
      }
      remember();
      state();
    };

    const choose = (number, focus) => {
      if (cards.has(current)) cards.get(current).classList.remove("current");
      current = number;
      const card = cards.get(number);
      if (!card) return;
      card.classList.add("current");
      if (focus) {
        card.focus({ preventScroll: true });
        card.scrollIntoView({ block: "nearest" });
      }
    };

    const groupTools = (name, numbers) => {
      const tools = make("span", "group");
      const add = (text, key, act) => {
        const button = make("button", "", text);
        button.type = "button";
        if (key) button.setAttribute("aria-keyshortcuts", `Shift+${key}`);
        button.addEventListener("click", act);
        tools.append(button);
      };
      add(`group of ${numbers.length} pairs`, "", () => { words.value = `#${name}`; filter(); });
      for (const [verdict, key] of VERDICTS.slice(0, 2)) add(`all ${verdict}`, key, () => decide(numbers, verdict));
      return tools;
    };

    const cardOf = (number) => {
      if (cards.has(number)) return cards.get(number);
      const item = items[number];
      const card = make("article", "pair");
      card.tabIndex = -1;
      card.setAttribute("role", "group");
      card.setAttribute("aria-label", `${item.kind}: ${item.names[0]} and ${item.names[1]}`);
      const sides = make("div", "sides");
      sides.append(side(item, 0), side(item, 1));
      const line = make("p");
      line.append(make("span", "badge", item.kind));
      for (const tag of item.tags) line.append(make("span", "badge alarm", tag));
      line.append(document.createTextNode(item.numbers));
      const buttons = make("div", "verdicts");
      for (const [verdict, key] of VERDICTS) {
        const button = make("button", verdict, verdict);
        button.type = "button";
        button.dataset.verdict = verdict;
        button.setAttribute("aria-keyshortcuts", key);
        button.addEventListener("click", () => { choose(number); decide([number], verdict); });
        buttons.append(button);
      }
      const group = groups.get(item.group) || [];
      if (group.length > 1) line.append(groupTools(item.group, group));
      card.addEventListener("focusin", () => { if (current !== number) choose(number); });
      card.append(sides, line, buttons);
      cards.set(number, card);
      mark(number);
      return card;
    };

    const extend = (most) => {
      const from = list.children.length;
      list.append(...fitting.slice(from, most).map(cardOf));
      more.hidden = list.children.length >= fitting.length;
      find(".count").textContent = `${fitting.length} pairs`;
    };

    const filter = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const [kind, onlyOpen] = [kindBox.value, openBox.checked];
      fitting = [...items.keys()].filter((number) => (!kind || items[number].kind === kind ||
        items[number].tags.includes(kind)) && (!onlyOpen || !decisions.has(number)) &&
        wanted.every((word) => /^#\d+$/.test(word) ? items[number].group === Number(word.slice(1))
          : texts[number].includes(word)));
      list.replaceChildren();
      extend(STEP);
      if (!fitting.includes(current)) choose(fitting.length ? fitting[0] : -1);
    };

    const move = (step) => {
      const place = fitting.indexOf(current);
      const next = Math.min(Math.max(place < 0 ? 0 : place + step, 0), fitting.length - 1);
      if (next < 0) return;
      if (next >= list.children.length) extend(next + STEP);
      choose(fitting[next], true);
    };

    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.matches?.("input:not([type=checkbox]), select, textarea")) return;
      const key = event.key.toLowerCase();
      const verdict = VERDICTS.find((each) => each[1] === key)?.[0];
      const group = groups.get(items[current]?.group) || [];
      if (key === "j" || key === "k") { event.preventDefault(); move(key === "j" ? 1 : -1); }
      else if (event.shiftKey) { if (verdict && key !== "x" && group.length > 1) decide(group, verdict); }
      else if (verdict && current >= 0) {
        event.preventDefault();
        const again = decisions.get(current) === verdict;
        decide([current], verdict);
        if (!again) move(1);
      }
    });

    if ("IntersectionObserver" in window)
      new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting) && !more.hidden) extend(list.children.length + STEP);
      }, { rootMargin: "600px" }).observe(more);
    more.addEventListener("click", () => extend(list.children.length + STEP));
    kindBox.addEventListener("change", filter);
    openBox.addEventListener("change", filter);
    words.addEventListener("input", filter);

    find(".review-save").addEventListener("click", () => {
      const listed = [...decisions].sort((one, other) => one[0] - other[0]).map(([number, decision]) => {
        const { a, b, found, similarity } = items[number];
        return { a, b, decision, kind: found, similarity };
      });
      const text = JSON.stringify({ generator: root.dataset.mark, decisions: listed }, null, 1) + "\n";
      const link = make("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.download = "decisions.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      unsaved = false;
      state();
    });

    find(".review-load").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      let loaded = 0;
      try {
        for (const each of JSON.parse(await file.text()).decisions) {
          const number = numberOf.get(keyOf(each));
          if (number === undefined || !VERDICTS.some(([verdict]) => verdict === each.decision)) continue;
          decisions.set(number, each.decision);
          mark(number);
          loaded += 1;
        }
        remember();
        filter();
        state();
        find(".review-state").textContent += `; ${loaded} loaded`;
      } catch {
        find(".review-state").textContent = "this file holds no decisions";
      }
      event.target.value = "";
    });

    window.addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });
    filter();
    state();
  }
})();
