"""Files of models in Hugging Face's cache, which are found without asking the network."""

from collections.abc import Sequence
from pathlib import Path


def cached_file(repository: str, names: Sequence[str], revision: str | None = None) -> Path | None:
    """Return the first of these files of a model that is in the cache; its folder is named as the commit.

    Args:
        repository: the model's name on the hub.
        names: the names of files.
        revision: a branch, tag or commit; None is the main branch.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    for name in names:
        try:
            found = try_to_load_from_cache(repository, name, revision=revision)
        except ValueError:  # no name of a model
            return None
        if isinstance(found, str):
            return Path(found)
    return None


def cached_model(repository: str, revision: str | None = None) -> Path | None:
    """Return the folder of a text model that is in the cache with its weights; its name is the commit.

    A model whose cache does not say whether it is one of sentence-transformers has been downloaded in part: None.
    """
    file = cached_file(repository, ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"), revision)
    if file is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    known = try_to_load_from_cache(repository, "modules.json", revision=revision)  # a mark says that there is none
    return None if known is None else file.parent
