"""Models on the Hugging Face Hub: `save_pretrained`, `from_pretrained`, `push_to_hub`; needs the extra `hf`.

A folder holds config.json, model.safetensors and a README.md; nothing in it can run code. A run, with its vocabularies, is published and
fetched as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from regard.config import ModelConfig, validate
from regard.errors import CheckpointError, missing_extra
from regard.models import EncoderDecoder, build
from regard.tasks.translation_run import TranslationRun, open_translation_run, run_files
from regard.training.atomic_folder import write_tensors
from regard.training.checkpoint import MODEL
from regard.training.weights import check_fit, named_tensors, read_weights, whole_tensors

try:
    import huggingface_hub
    from huggingface_hub import HfApi, PyTorchModelHubMixin, hf_hub_download, snapshot_download
except ImportError as error:
    raise missing_extra("regard.integrations.hub needs huggingface_hub", "hf") from error
if int(huggingface_hub.__version__.partition(".")[0]) < 1:  # tokenizers alone may install an older one, whose mixin has other arguments
    found = huggingface_hub.__version__
    raise missing_extra(f"regard.integrations.hub needs huggingface_hub 1.0 or newer, found {found}", "hf")

__all__ = ["HubModel", "fetch_run", "publish_run"]


class HubModel(nn.Module, PyTorchModelHubMixin, library_name="regard", tags=["regard", "attention"]):
    """A model with its settings, and the methods of the Hub's mixin.

    Args:
        model: the model part of a configuration, `config.model_dump(mode="json")`.
        source_size: size of the source vocabulary.
        target_size: size of the target vocabulary.
        second_size: size of the second input's vocabulary, for a model of two inputs.

    Attributes:
        model: the model itself.

    Parameters: saved under the model's own names, a tied tensor once.

    Raises:
        ConfigError: invalid settings; the message names the key.

    Example:
        >>> import tempfile, torch
        >>> hub = HubModel({"type": "transformer", "embed_dim": 8, "num_heads": 2}, source_size=11, target_size=11)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = hub.save_pretrained(folder)
        ...     again = HubModel.from_pretrained(folder)
        >>> torch.equal(again.model.output.weight, hub.model.output.weight)
        True
    """

    def __init__(self, model: dict[str, Any], source_size: int, target_size: int, second_size: int | None = None) -> None:
        super().__init__()
        self.model: EncoderDecoder[Any] = build(
            _model_config(model), source_size=source_size, target_size=target_size, second_size=second_size
        )

    @classmethod
    def of(cls, run: TranslationRun) -> HubModel:
        """Return the model of a loaded run, without its vocabularies."""
        hub = cls(run.config.model.model_dump(mode="json"), **run.vocabularies.sizes)
        hub.model = run.model
        return hub

    def forward(self, *args: Any, **options: Any) -> Any:
        """Call the model."""
        return self.model(*args, **options)

    def _save_pretrained(self, save_directory: Path) -> None:
        write_tensors(save_directory / MODEL, whole_tensors(named_tensors(self.model)), {"format": "pt"})

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str = "cpu",
        strict: bool = True,
        **model_kwargs: Any,
    ) -> HubModel:
        # The mixin's own method falls back to pickle if there are no safetensors.
        if missing := {"model", "source_size", "target_size"} - model_kwargs.keys():
            raise CheckpointError(f"{model_id}: config.json is missing, or lacks {', '.join(sorted(missing))}")
        path = Path(model_id, MODEL)
        if not Path(model_id).is_dir():
            options: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "force_download": force_download}
            path = Path(hf_hub_download(model_id, MODEL, token=token, local_files_only=local_files_only, **options))
        check_fit(path, lambda: cls(**model_kwargs).model)
        hub = cls(**model_kwargs)
        read_weights(path, hub.model)
        return hub.to(map_location).eval()


def publish_run(folder: str | Path, repo: str, *, private: bool = True) -> str:
    """Publish a run on the Hub: configuration, vocabularies and final weights, without training state.

    The configuration contains the paths of the training files.

    Args:
        folder: a finished run.
        repo: "owner/name"; created if missing.
        private: whether a new repository is private.

    Returns:
        Its URL.

    Raises:
        CheckpointError: the run cannot be opened or has no final weights.

    Example:
        >>> publish_run("no-such-run", "me/model")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    run = open_translation_run(folder)
    if run.weights.parent != run.folder / "model":
        raise CheckpointError(f"{folder}: has no final weights yet; let its training end")
    api = HfApi()
    name = api.create_repo(repo, private=private, exist_ok=True).repo_id
    files = [*run_files(run.config), "model/*"]
    return str(api.upload_folder(repo_id=name, folder_path=run.folder, allow_patterns=files))


def fetch_run(repo: str, *, revision: str | None = None) -> Path:
    """Download a run published by `publish_run` and verify it; return its folder, for `regard.tasks.Translator.open` and the CLI.

    Args:
        repo: "owner/name".
        revision: branch, tag or commit; None: the latest.

    Raises:
        CheckpointError: the repository holds no run, or a damaged one.
    """
    folder = Path(snapshot_download(repo, revision=revision, allow_patterns=["*.yaml", "*.json", "model/*.json", "model/*.safetensors"]))
    return open_translation_run(folder).folder


def _model_config(settings: dict[str, Any]) -> ModelConfig:
    return validate({"model": settings}, "settings").model
