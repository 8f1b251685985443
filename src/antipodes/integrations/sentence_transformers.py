"""`MultipleNegativesRankingLoss` of sentence-transformers with a policy that decides which candidates are negatives.

Their loss receives tokens, which cannot tell equal texts from texts that are equal up to the truncation. So `attach`
adds two steps to their trainer:

1. Before a column of texts is tokenised, every text is hashed, and the hashes reach the loss as `content` with the
   tokens of the column. A guide's own tokens travel in the same way.
2. A callback gives the loss the share of training that is done, adds its statistics to the log, and writes the
   policies' tables to every checkpoint, `checkpoint-N/antipodes.safetensors`. Resuming reads them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from antipodes import Group, Hardness, InfoNCE, OneWay, Pairs, Policy, Rule, TwoWay, content_ids
from antipodes.files import replacing

try:
    from sentence_transformers.base.losses.gradcache import CachedLossMixin, has_static_embedding_input
    from sentence_transformers.base.losses.merged_forward import embed_columns
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss as TheirLoss
    from sentence_transformers.util import cos_sim, dot_score
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "antipodes.integrations.sentence_transformers needs sentence-transformers 6.2 or later: "
        "pip install 'antipodes[sentence-transformers]'"
    ) from error

_BLOCKS = {
    "query_to_query": "query_to_query",
    "doc_to_query": "document_to_query",
    "doc_to_doc": "document_to_document",
}
_HARDNESS = {"in_batch_negatives": "in_batch", "hard_negatives": "given", "all_negatives": "all"}
_FILE = "antipodes.safetensors"
_CONTENT, _GUIDE = "content", "guide/"  # what `attach` adds to the features of a column
_ATTACH = "call attach(trainer) before trainer.train()"


@dataclass
class _Batch:
    """What the loss knows of a batch besides its embeddings.

    Attributes:
        key: A tensor of the batch's input, by which the same batch is recognised when a wrapper such as MatryoshkaLoss
            calls the loss several times.
        labels: (B,) the label column, if there is one.
        contents: (B,) hashes of the texts of every column.
        guide: (B, G) the guide's vectors of every column.
        fresh: Whether no call has moved tables for this batch yet.
    """

    key: Tensor | None = None
    labels: Tensor | None = None
    contents: Sequence[Tensor] | None = None
    guide: Sequence[Tensor] | None = None
    fresh: bool = True


class _SameText(Policy):
    """A candidate whose text is the anchor's query or document is no negative, whichever column it stands in.

    Equal queries and equal documents are left out by their ids; this rule is for a query that equals a document.
    """

    needs = replace(Policy.needs, rows=False, identities=True)

    def judge(self, pairs: Pairs, progress: float) -> Rule:
        """Compare candidates that are documents with the anchor's query, and queries with its document."""
        names, block = pairs.identities, pairs.block
        assert names is not None
        assert block is not None
        if block.endswith("query"):
            return Rule(groups=(Group(names.anchor_documents, names.candidate_queries),))
        return Rule(groups=(Group(names.anchor_queries, names.candidate_documents),))


class MultipleNegativesRankingLoss(CachedLossMixin, TheirLoss):  # type: ignore[misc]
    """The loss of sentence-transformers by its name, with a policy that decides which candidates are negatives.

    The first seven arguments, the columns of the data and the value are those of
    `sentence_transformers.losses.MultipleNegativesRankingLoss`: without policy, and with `ids=None` or with texts that
    all differ, value and gradient are equal to theirs. There may be any number of columns of hard negatives.

    Args:
        model: The SentenceTransformer that is trained.
        scale: Similarities are multiplied by it, the inverse of the temperature.
        similarity_fct: `cos_sim` or `dot_score` of `sentence_transformers.util`.
        gather_across_devices: Whether candidates come from all ranks.
        directions: `query_to_doc`, and perhaps `query_to_query`, `doc_to_query` and `doc_to_doc`.
        partition_mode: `joint` for one softmax, `per_direction` for the mean of both directions' softmaxes.
        hardness_mode: Which negatives get a penalty by their similarity; see theirs.
        hardness_strength: That times the similarity is the penalty.
        negatives: A policy such as `PositiveAware(-0.1, relative=False)`. Policies with tables by row take the row
            numbers from the label column. Where no gradient is wanted, as in the evaluation of a training, a policy
            with tables flags nothing, because the rows there are those of other data.
        guide: A SentenceTransformer whose similarities a policy such as `Guided` compares. Its texts are those of the
            data, without the prompts of the model.
        mini_batch_size: Embed in pieces of so many texts and recompute each piece in backward, as their
            `CachedMultipleNegativesRankingLoss`; None embeds the batch at once.
        ids: What is the same thing and hence no negative: `content`, equal texts (whole texts, before truncation);
            `label`, pairs with one number in the label column; None, nothing but the pair itself.
        in_batch: Whether the texts of other rows are negatives; False compares an anchor with its positive and the
            negatives of its own row alone.

    Example:
        >>> loss = MultipleNegativesRankingLoss(model, negatives=PositiveAware(0.05))  # doctest: +SKIP
        >>> trainer = SentenceTransformerTrainer(model, args, train_dataset=pairs, loss=loss)  # doctest: +SKIP
        >>> attach(trainer)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        scale: float = 20.0,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        gather_across_devices: bool = False,
        directions: tuple[str, ...] = ("query_to_doc",),
        partition_mode: str = "joint",
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        *,
        negatives: Policy | None = None,
        guide: Any = None,
        mini_batch_size: int | None = None,
        ids: str | None = "content",
        in_batch: bool = True,
    ) -> None:
        super().__init__(
            model, scale, similarity_fct, gather_across_devices, directions, partition_mode, hardness_mode,
            hardness_strength,
        )  # fmt: skip
        if similarity_fct not in (cos_sim, dot_score):
            raise ValueError(
                f"similarity_fct must be cos_sim or dot_score of sentence_transformers.util, got {similarity_fct!r}"
            )
        if len(set(directions)) < len(directions):
            raise ValueError(f"directions must be different ones, got {directions!r}")
        if ids not in ("content", "label", None):
            raise ValueError(f"ids must be 'content', 'label' or None, got {ids!r}")
        if negatives is not None and not isinstance(negatives, Policy):
            raise ValueError(f"negatives must be a policy such as PositiveAware(0.05), got {negatives!r}")
        needs_rows = negatives is not None and negatives.needs.rows
        if needs_rows and ids is None:
            raise ValueError(
                "negatives look samples up by row, which the label column holds: give ids='label' or 'content'"
            )
        if (guide is not None) != (negatives is not None and negatives.needs.guide):
            raise ValueError(
                "guide and a policy that compares in its space, such as Guided(0.1), need each other: give both"
            )
        if mini_batch_size is not None and (not isinstance(mini_batch_size, int) or mini_batch_size < 1):
            raise ValueError(f"mini_batch_size must be a whole number of at least 1, got {mini_batch_size!r}")
        if mini_batch_size is not None and has_static_embedding_input(model):
            raise ValueError("mini_batch_size cannot split the inputs of a StaticEmbedding: leave it out")
        self.ids, self.mini_batch_size, self.guide = ids, mini_batch_size, guide
        if guide is not None and guide is not model:
            guide.eval()
        self.uses_gradient_cache = mini_batch_size is not None  # read by MatryoshkaLoss
        self.progress: float | None = None
        self._needs_rows = needs_rows
        self._batch = _Batch()

        same_text = _SameText() if ids == "content" else None
        both = [policy for policy in (negatives, same_text) if policy is not None]
        of_training = both[0] & both[1] if len(both) == 2 else (both[0] if both else None)
        self._hardness = Hardness(hardness_strength, _HARDNESS[hardness_mode]) if hardness_mode else None  # type: ignore[arg-type]
        info_nce = InfoNCE(
            1 / scale,
            of_training,
            similarity="dot" if similarity_fct is dot_score else "cosine",
            hardness=self._hardness,
        )
        also = [_BLOCKS[direction] for direction in directions if direction != "query_to_doc"]
        self.loss_fn: OneWay | TwoWay
        if also and not in_batch:
            raise ValueError(
                f"in_batch=False leaves out what other directions than query_to_doc need, got {directions!r}"
            )
        if partition_mode == "per_direction" and also:
            self.loss_fn = TwoWay(info_nce, names=("query_to_doc", "doc_to_query"))
            self._losses()[1].hardness = None  # theirs applies to query_to_doc alone
        else:
            self.loss_fn = OneWay(info_nce, in_batch, also)  # type: ignore[arg-type]

    @property
    def stats(self) -> dict[str, float]:
        """Numbers of the last call by name: flagged_share, kept_per_anchor, ..."""
        return self.loss_fn.stats

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """The mean loss of a batch; the features of its columns and its label column are as the trainer gives them."""
        features = list(sentence_features)
        if len(features) < 2:
            raise ValueError(f"the data must have columns of anchors and of positives, got {len(features)} columns")
        ours = [{key: value for key, value in column.items() if _is_ours(key)} for column in features]
        batch = self._read(features, ours, labels)
        if self.mini_batch_size is not None:
            batch.fresh = True  # here a wrapper calls calculate_loss several times, not this function
            plain = [{key: value for key, value in column.items() if not _is_ours(key)} for column in features]
            loss: Tensor = self.forward_cached(plain, batch)
            return loss
        try:  # the model shall not see them; the same dicts, because wrappers pass on results in them
            for column, keys in zip(features, ours, strict=True):
                for key in keys:
                    del column[key]
            embeddings = embed_columns(self.model, features)
        finally:
            for column, keys in zip(features, ours, strict=True):
                column.update(keys)
        loss = self.compute_loss_from_embeddings(embeddings, batch)
        if loss.requires_grad:
            loss.register_hook(_until_backward(batch))
        return loss

    def calculate_loss(self, reps: list[list[Tensor]], labels: Any = None, *, with_backward: bool = False) -> Tensor:
        """The loss of embeddings that come in pieces, as `CachedLossMixin` asks for it."""
        loss = self.compute_loss_from_embeddings([torch.cat(pieces) for pieces in reps], labels)
        if with_backward:
            loss.backward()
            return loss.detach()
        return loss

    def compute_loss_from_embeddings(self, embeddings: Sequence[Tensor], labels: Any = None) -> Tensor:
        """The mean loss of embeddings (B, D), one tensor a column.

        Args:
            embeddings: Of the anchors, the positives, and perhaps columns of hard negatives.
            labels: (B,) the label column, if there is one; `forward` passes a whole batch here.
        """
        batch = labels if isinstance(labels, _Batch) else _Batch(labels=labels)
        queries, documents, *given = embeddings
        trains = torch.is_grad_enabled()
        options: dict[str, Any] = {}
        if given:
            options["hard_negatives"] = torch.stack(given, 1)
        if self.ids == "content":
            if batch.contents is None:
                raise ValueError(f"the texts' content is missing, by which ids='content' finds equal texts: {_ATTACH}")
            options["ids"] = (batch.contents[0], batch.contents[1])
            if given:
                options["hard_negative_ids"] = torch.stack(list(batch.contents[2:]), 1)
        elif self.ids == "label":
            options["ids"] = self._labels(batch)
        if self._needs_rows and trains:
            options["rows"] = self._labels(batch)
        if self.guide is not None:
            if batch.guide is None:
                raise ValueError(f"the guide's tokens are missing: {_ATTACH}")
            hard = (torch.stack(list(batch.guide[2:]), 1),) if given else ()
            options["guide"] = (batch.guide[0], batch.guide[1], *hard)
        if trains and self.progress is None and any(loss.uses_progress for loss in self._losses()):
            raise ValueError(f"this loss changes with training and was not told how far it is: {_ATTACH}")
        losses = self._losses()
        # theirs has no effect without given negatives, where ours is refused
        unused = self._hardness is not None and self._hardness.on == "given" and not given
        losses[0].hardness = None if unused else self._hardness
        of_training = [loss.negatives for loss in losses]
        again = self.training and not batch.fresh
        if again:
            self.loss_fn.eval()  # its tables have learned from this batch
        try:
            if self._needs_rows and not trains:
                for loss in losses:
                    loss.negatives = _SameText() if self.ids == "content" else None
            value: Tensor = self.loss_fn(
                queries,
                documents,
                temperature=1 / self.scale,
                gather=self.gather_across_devices,
                progress=1.0 if self.progress is None else self.progress,
                **options,
            )
        finally:
            for loss, policy in zip(losses, of_training, strict=True):
                loss.negatives = policy
            if again:
                self.loss_fn.train()
        batch.fresh = batch.fresh and not trains
        return value

    def get_config_dict(self) -> dict[str, Any]:
        """Their settings and ours, for the model card."""
        policies = [type(policy).__name__ for policy in self.policies() if not isinstance(policy, _SameText)]
        ours = {"negatives": " & ".join(policies) or None, "mini_batch_size": self.mini_batch_size, "ids": self.ids}
        return {**super().get_config_dict(), **ours}

    def policies(self) -> list[Policy]:
        """The policies, each part of a joined one by itself."""
        return self.loss_fn.policies()

    def _losses(self) -> list[InfoNCE]:
        """The loss of the one softmax, or those of both directions."""
        return [part for part in self.loss_fn.modules() if isinstance(part, InfoNCE)]

    def _labels(self, batch: _Batch) -> Tensor:
        """The label column as whole numbers."""
        if batch.labels is None:
            what = "ids='label' reads identities" if self.ids == "label" else "negatives read row numbers"
            raise ValueError(f"{what} from a column named label, which the data do not have: add it")
        if batch.labels.is_floating_point() or batch.labels.dim() != 1:
            raise ValueError(
                f"the label column must hold whole numbers, (B,), got {batch.labels.dtype} of shape "
                f"{tuple(batch.labels.shape)}"
            )
        return batch.labels

    def _read(self, features: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], labels: Any) -> _Batch:
        """What `attach` has added to the features; for a batch that was just seen, what was read then."""
        key = next((value for value in features[0].values() if isinstance(value, Tensor)), None)
        if key is not None and key is self._batch.key:
            self._batch.labels = labels
            return self._batch
        contents = [column[_CONTENT] for column in ours if _CONTENT in column]
        self._batch = _Batch(key, labels, contents if len(contents) == len(features) else None)
        if self.guide is not None and all(any(key.startswith(_GUIDE) for key in column) for column in ours):
            self._batch.guide = [self._ask_guide(column) for column in ours]
        return self._batch

    @torch.no_grad()
    def _ask_guide(self, column: Mapping[str, Any]) -> Tensor:
        """The guide's vectors of a column, (B, G), embedded in pieces where the model embeds in pieces."""
        tokens = {key.removeprefix(_GUIDE): value for key, value in column.items() if key.startswith(_GUIDE)}
        whole = len(column[f"{_GUIDE}input_ids"]) if "attention_mask" in tokens else 0  # 0: not one row a text
        size = self.mini_batch_size or whole
        if not 0 < size < whole:
            vectors: Tensor = self.guide(tokens)["sentence_embedding"]
            return vectors
        pieces = [
            {key: value[at : at + size] if isinstance(value, Tensor) else value for key, value in tokens.items()}
            for at in range(0, whole, size)
        ]
        return torch.cat([self.guide(piece)["sentence_embedding"] for piece in pieces])


def _until_backward(batch: _Batch) -> Callable[[Tensor], None]:
    """A hook for the backward pass, after which the same inputs count as a new batch."""

    def done(gradient: Tensor) -> None:
        batch.fresh = True

    return done


def _is_ours(key: str) -> bool:
    """Whether `attach` has added this feature."""
    return key == _CONTENT or key.startswith(_GUIDE)


def attach(trainer: Any, resume_from: str | Path | None = None) -> None:
    """Connect the losses of this module with the SentenceTransformerTrainer that trains with them.

    Call it before `trainer.train()`. It hashes texts for the losses, gives them the share of training done, adds their
    statistics to the log, and keeps their tables in the checkpoints.

    Args:
        trainer: The trainer, with such a loss, a dict of them, or one inside a wrapper such as MatryoshkaLoss.
        resume_from: The checkpoint folder whose tables are read when training starts. None: where training resumes at
            step N, `checkpoint-N` in the trainer's `output_dir`.

    Raises:
        ValueError: if the trainer has no such loss or is attached already, if several datasets share tables and their
            row numbers overlap, or if two losses have different guides.
        FileNotFoundError: if `resume_from`, or the checkpoint from which training resumes, has no tables.
    """
    losses = _find_losses(trainer.loss)
    if not losses:
        raise ValueError(
            "trainer.loss has no MultipleNegativesRankingLoss of antipodes.integrations.sentence_transformers"
        )
    if isinstance(trainer.data_collator.preprocess_fn, _Preprocess):
        raise ValueError("the trainer is attached already: call attach once")
    guides = {id(loss.guide): loss.guide for loss in losses.values() if loss.guide is not None}
    if len(guides) > 1:
        raise ValueError("the losses of one trainer must have one guide, got several")
    _check_rows(trainer, losses)
    saved = None if resume_from is None else _tables_in(Path(resume_from))
    content = any(loss.ids == "content" for loss in losses.values())
    guide = next(iter(guides.values()), None)
    trainer.data_collator.preprocess_fn = _Preprocess(trainer.data_collator.preprocess_fn, content, guide)
    # first: reporters that were added earlier would log before the statistics are there
    trainer.callback_handler.callbacks.insert(0, _Callback(losses, saved))


class _Preprocess:
    """Tokenise a column as before, and add hashes of its texts and the tokens of the guide."""

    def __init__(self, preprocess: Callable[..., Any], content: bool, guide: Any) -> None:
        self.preprocess, self.content, self.guide = preprocess, content, guide

    def __call__(self, inputs: Sequence[Any], **options: Any) -> dict[str, Any]:
        """The features of a column."""
        features = dict(self.preprocess(inputs, **options))
        other = next((type(each).__name__ for each in inputs if not isinstance(each, str)), None)
        if self.content:
            if other is not None:
                raise ValueError(
                    f"ids='content' compares texts, and a column holds a {other}: give ids='label' or None"
                )
            features[_CONTENT] = content_ids(inputs)
        if self.guide is not None:
            features |= {f"{_GUIDE}{key}": value for key, value in self.guide.preprocess(list(inputs)).items()}
        return features


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Tell the losses the share of training done, log their statistics, write and read their tables."""

    def __init__(self, losses: Mapping[str, MultipleNegativesRankingLoss], saved: Path | None) -> None:
        self.losses, self.saved = losses, saved

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Read the tables where training resumes."""
        path = self.saved
        if path is None and state.global_step:
            path = _tables_in(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        if path is not None:
            _read_tables(path, self.losses)
        self.on_step_begin(args, state, control)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the progress of every loss."""
        for loss in self.losses.values():
            loss.progress = min(1.0, state.global_step / state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Add the statistics of the last step to the log of a training step."""
        if logs is None or "loss" not in logs:
            return
        numbers = {
            "/".join(part for part in ("antipodes", name, key) if part): value
            for name, loss in self.losses.items()
            for key, value in loss.stats.items()
        }
        logs |= numbers
        if state.log_history:
            state.log_history[-1] |= numbers

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the tables into the checkpoint that was just written."""
        if not state.is_world_process_zero:
            return
        tables = {
            f"{name}/{key}": value.detach().cpu().clone().contiguous()
            for name, loss in self.losses.items()
            for key, value in loss.loss_fn.state_dict().items()
        }
        with replacing(Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE) as temporary:
            save_file(tables, temporary)


def _find_losses(given: Any) -> dict[str, MultipleNegativesRankingLoss]:
    """Our losses by the name of their dataset and their place inside wrappers."""
    of_datasets = given if isinstance(given, dict) else {"": given}
    return {
        ".".join(part for part in (name, path) if part): module
        for name, loss in of_datasets.items()
        for path, module in loss.named_modules()
        if isinstance(module, MultipleNegativesRankingLoss)
    }


def _tables_in(checkpoint: Path) -> Path:
    """The file of tables in a checkpoint folder."""
    path = checkpoint if checkpoint.name == _FILE else checkpoint / _FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: the checkpoint holds no tables of the loss, give attach(trainer, resume_from=...) "
            "the checkpoint folder that does"
        )
    return path


def _read_tables(path: Path, losses: Mapping[str, MultipleNegativesRankingLoss]) -> None:
    """Load what `_Callback.on_save` has written."""
    tables = load_file(path)
    known = {name: {f"{name}/{key}" for key in loss.loss_fn.state_dict()} for name, loss in losses.items()}
    if set().union(*known.values()) != set(tables):
        raise ValueError(f"{path} holds the tables of another loss: resume with the losses and policies of that run")
    for name, loss in losses.items():
        state = {key.removeprefix(f"{name}/"): tables[key] for key in known[name]}
        try:
            loss.loss_fn.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"{path} holds tables of other sizes: {error}") from error


def _check_rows(trainer: Any, losses: Mapping[str, MultipleNegativesRankingLoss]) -> None:
    """Refuse several datasets whose row numbers mean different things in one table."""
    datasets = trainer.train_dataset
    if not isinstance(datasets, dict) or len(datasets) < 2:
        return
    readers: dict[int, set[str]] = {}
    for name, loss in losses.items():
        served = [
            each
            for each in datasets
            if not isinstance(trainer.loss, dict) or trainer.loss[each] is _root(trainer.loss, name)
        ]
        for policy in loss.policies():
            if policy.needs.rows:
                readers.setdefault(id(policy), set()).update(served)
    for names in readers.values():
        rows = [_rows_of(datasets[name], trainer.data_collator.valid_label_columns) for name in sorted(names)]
        seen = np.concatenate([each for each in rows if each is not None] or [np.zeros(0)])
        if len(names) > 1 and (any(each is None for each in rows) or len(np.unique(seen)) < len(seen)):
            raise ValueError(
                f"the datasets {', '.join(sorted(names))} share a policy with tables by row, but their label columns "
                "do not hold row numbers that are unique over all of them: number the rows so, or give a dict of losses"
            )


def _root(losses: Mapping[str, Any], name: str) -> Any:
    """The loss of a dict in which the loss of this name was found."""
    return next(loss for key, loss in losses.items() if name == key or name.startswith(f"{key}."))


def _rows_of(dataset: Any, columns: Sequence[str]) -> np.ndarray | None:
    """The distinct row numbers of a dataset, or None if it has none or is a stream."""
    column = next((each for each in columns if each in (dataset.column_names or ())), None)
    if column is None or not hasattr(dataset, "__len__"):
        return None
    return np.unique(np.asarray(dataset.with_format("numpy", columns=[column])[column]))
