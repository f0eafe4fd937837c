"""The audit of a run folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gradsieve.audit.judging import Answers, joined, judge, mean_scores, read_outputs
from gradsieve.audit.result import Audit
from gradsieve.errors import RunFolderError
from gradsieve.training.evaluate import common_answer, predict
from gradsieve.training.folder import read_folder
from gradsieve.training.ledger import Ledger
from gradsieve.training.result import require_trained_on
from gradsieve.training.setting import Setting, prepare
from gradsieve.training.state import load_weights

PART = 2**16  # rows predicted at a time


@torch.inference_mode(False)  # whoever audits may be in it, but corrupted rows could not be made again there
def audit_run(folder: str | Path) -> Audit:
    """The audit of a finished run of ``gradsieve train``, from its ledger, its weights and its training rows.

    The rows are loaded and corrupted again as in the run, so that ``given`` is what the run was trained on.
    """
    found = read_folder(Path(folder))
    if not found.finished:
        raise RunFolderError(f"{folder} is not finished. Resume its training first, then audit it.")
    ledger, weights = Ledger(**found.ledger()), found.weights()
    setting = prepare(found.run)
    data = setting.data
    require_trained_on(found, data.train)
    return judge(
        data.task,
        data.output_names,
        data.train.targets.numpy(),
        final_answers(setting, weights),
        mean_scores(ledger),
        seen=ledger.judged.numpy(),
        dropped=ledger.dropped.numpy(),
        method=found.run.method,
        run=Path(folder).resolve().name,
    )


def final_answers(setting: Setting, weights: dict[str, Tensor]) -> Answers:
    """The joint final predictions of a run's networks for its training rows."""
    networks = setting.make_networks()
    load_weights(networks, weights)
    train, task = setting.data.train, setting.data.task

    def of_part(inputs: Tensor, targets: Tensor) -> Answers:
        outputs = torch.stack([predict(network, inputs, setting.device).cpu() for network in networks])
        return read_outputs(task, targets.numpy(), common_answer(task, outputs.double()))

    # In parts: the probabilities of all classes may need more memory than the rest of the audit.
    parts = zip(train.inputs.split(PART), train.targets.split(PART), strict=True)
    return joined(of_part(inputs, targets) for inputs, targets in parts)
