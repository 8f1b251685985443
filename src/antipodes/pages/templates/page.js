"use strict";
const pictures = JSON.parse(document.getElementById("pictures").textContent);

(() => {
  const wordsOf = (box) => box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text, words) => words.every((word) => text.includes(word));

  // Tables: a click on a heading sorts, words filter.
  for (const section of document.querySelectorAll("section.table, section.scores")) {
    const body = section.querySelector("tbody");
    const rows = [...body.rows];
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const box = section.querySelector(".words");
    const count = section.querySelector(".count");
    const filter = () => {
      const words = wordsOf(box);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !matches(texts.get(row), words);
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${rows.length}`;
    };
    const heads = [...section.querySelectorAll("th")];
    const sort = (column) => {
      const head = heads[column];
      const numeric = rows.some((row) => row.cells[column].dataset.value !== undefined);
      const up = head.getAttribute("aria-sort") === "none" ? !numeric : head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((each) => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[column];
        return numeric ? parseFloat(cell.dataset.value ?? "NaN") : cell.textContent;
      };
      const compare = (a, b) => {
        if (!numeric) return (up ? 1 : -1) * key(a).localeCompare(key(b), undefined, { numeric: true });
        const [x, y] = [key(a), key(b)];
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
        return up ? x - y : y - x;
      };
      rows.sort(compare);
      body.append(...rows);
    };
    heads.forEach((head, column) => {
      head.addEventListener("click", () => sort(column));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(column); }
      });
    });
    box.addEventListener("input", filter);
    filter();
  }

  // Folded sections open when they are linked to.
  const unfold = () => {
    const folded = document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
    if (folded) folded.open = true;
  };
  window.addEventListener("hashchange", unfold);
  unfold();

  // Galleries: by kind and by words, some at a time; a picture is only put in when its card is shown.
  for (const section of document.querySelectorAll("section.gallery")) {
    const holder = section.querySelector(".cards");
    const STEP = Number(holder.dataset.first);
    const given = [...holder.children];
    const texts = new Map(given.map((card) => [card, (card.textContent + " " +
      [...card.querySelectorAll("figcaption")].map((each) => each.title).join(" ")).toLowerCase()]));
    const [box, count, more, order] = [".words", ".count", ".more", ".order"].map((name) => section.querySelector(name));
    let kind = "", most = STEP, cards = given;
    const show = () => {
      const words = wordsOf(box);
      const fitting = cards.filter((card) => (!kind || card.dataset.kind === kind) && matches(texts.get(card), words));
      const shown = new Set(fitting.slice(0, most));
      for (const card of given) {
        card.hidden = !shown.has(card);
        if (shown.has(card))
          for (const image of card.querySelectorAll("img:not([src])")) image.src = pictures[image.dataset.image];
      }
      count.textContent = `${shown.size} of ${fitting.length}`;
      more.hidden = fitting.length <= most;
    };
    for (const button of section.querySelectorAll(".kind"))
      button.addEventListener("click", () => {
        section.querySelectorAll(".kind").forEach((each) => each.classList.toggle("on", each === button));
        kind = button.dataset.kind;
        most = STEP;
        show();
      });
    order.addEventListener("click", () => {
      const turned = order.classList.toggle("on");
      cards = turned ? [...given].sort((a, b) => a.dataset.score - b.dataset.score) : given;
      holder.append(...cards);
      show();
    });
    box.addEventListener("input", () => { most = STEP; show(); });
    more.addEventListener("click", () => { most += STEP; show(); });
    show();
  }

  // Maps: points on a canvas; the nearest to the pointer is shown with its picture.
  for (const holder of document.querySelectorAll(".plane")) {
    const { points } = JSON.parse(holder.querySelector("script").textContent);
    const canvas = holder.querySelector("canvas");
    const tip = holder.querySelector(".tip");
    const picture = tip.querySelector("img");
    const EDGE = 16;
    let chosen = -1;
    const place = (point) => [EDGE + point[0] * (canvas.clientWidth - 2 * EDGE),
                              EDGE + (1 - point[1]) * (canvas.clientHeight - 2 * EDGE)];
    const draw = () => {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = canvas.clientWidth * ratio;
      canvas.height = canvas.clientHeight * ratio;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const colours = [...Array(12).keys()].map((each) => style.getPropertyValue(`--c${each}`));
      points.forEach((point, number) => {
        const [x, y] = place(point);
        pen.fillStyle = point[2] < 0 ? style.getPropertyValue("--accent") : colours[point[2] % 12];
        pen.globalAlpha = number === chosen ? 1 : 0.7;
        pen.beginPath();
        pen.arc(x, y, number === chosen ? 6 : 3.5, 0, 7);
        pen.fill();
      });
    };
    const choose = (number) => {
      chosen = number;
      tip.hidden = number < 0;
      if (number >= 0) {
        const [x, y] = place(points[number]);
        picture.hidden = points[number][3] < 0;
        if (!picture.hidden) picture.src = pictures[points[number][3]];
        tip.querySelector("span").textContent = points[number][4];
        tip.style.left = `${x + 170 > canvas.clientWidth ? Math.max(0, x - 162) : x + 12}px`;
        tip.style.top = `${y + 210 > canvas.clientHeight ? Math.max(0, y - 200) : y + 12}px`;
      }
      draw();
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      let best = -1, least = 24 * 24;
      points.forEach((point, number) => {
        const [x, y] = place(point);
        const distance = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
        if (distance < least) [best, least] = [number, distance];
      });
      choose(best);
    });
    canvas.addEventListener("pointerleave", () => choose(-1));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) { event.preventDefault(); choose((chosen + step + points.length) % points.length); }
    });
    window.addEventListener("resize", draw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    draw();
  }
})();
