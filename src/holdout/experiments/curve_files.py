"""What a curve leaves in the run folder besides its lines: trained models, and where it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import holdout
from holdout import saved_models
from holdout.checkpoint_files import ENDS
from holdout.config.changes import curve_config_sha256
from holdout.curve_rows import CurveKey
from holdout.experiments.checkpoints import end_of, to_checkpoint
from holdout.experiments.plan import ExperimentPlan
from holdout.federation.round_setup import State
from holdout.learning import vector
from holdout.results import RunFolder


def named_tensors(model: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """The weights as `model.load_state_dict` takes them, apart from the vector they came from."""
    return {name: part.clone() for name, part in vector.unflatten(model, weights).items()}


def save_model(
    folder: RunFolder,
    plan: ExperimentPlan,
    key: CurveKey,
    tensors: Mapping[str, Tensor],
    round_number: int,
    *,
    is_final: bool,
) -> None:
    """Write a curve's model after a round: as its final one, or as that of the round."""
    metadata = {
        "holdout": holdout.__version__,
        "rule": key.rule,
        "attack": key.attack,
        "seed": str(key.seed),
        "round": str(round_number),
        "config_sha256": curve_config_sha256(plan.config.as_dict()),
        "model": plan.config.model.name,
        "sample_shape": ",".join(map(str, plan.dataset.shape)),
        **_outputs(plan),
        # By convention: tensors in the layout of torch.
        "format": "pt",
    }
    path = saved_models.file_of(folder.path, key, None if is_final else round_number)
    folder.write_bytes(path.relative_to(folder.path), saved_models.encode(tensors, metadata))


def _outputs(plan: ExperimentPlan) -> dict[str, str]:
    """How many classes, or real-valued targets, the model tells."""
    dataset = plan.dataset
    if dataset.classes is None:
        return {"targets": str(dataset.outputs)}
    return {"classes": str(dataset.classes)}


def save_end(
    folder: RunFolder,
    plan: ExperimentPlan,
    key: CurveKey,
    state: State,
    *,
    model: nn.Module,
    environment: Mapping[str, Any],
) -> None:
    """Write a curve's final model and state; then the checkpoint that says it has ended."""
    tensors = named_tensors(model, state.weights)
    save_model(folder, plan, key, tensors, state.round, is_final=True)
    if not state.diverged:
        folder.save_end(key, state.round, to_checkpoint(key, state, environment))
    folder.save(end_of(key, state.round, environment), folder.mark())
    # Not before: until then the curve may have to be run again from where it ended earlier.
    folder.drop_earlier_ends(key, state.round)


def take_over(folder: RunFolder, other: Path) -> None:
    """Copy what curves left in another folder, but for its lines."""
    for place in (Path(saved_models.FOLDER), ENDS):
        for path in sorted((other / place).glob("*")):
            if not path.name.endswith(".partial"):
                folder.write_bytes(place / path.name, path.read_bytes())
