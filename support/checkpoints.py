"""Checkpoints: all that a run needs to go on as if it had never stopped."""

import hashlib
import itertools
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor
from tqdm import tqdm


def last_line(error: BaseException) -> str:
    """The libraries put a traceback into the message; the cause is its last line."""
    return (str(error).strip().splitlines() or [repr(error)])[-1]


def fingerprint(policy) -> int:
    """Of the weights' bits, whatever the number of ranks: integer sums do not depend on their order. Collective."""
    total = torch.zeros((), dtype=torch.long)
    for i, p in enumerate(policy.parameters(), 1):
        local = p.to_local() if isinstance(p, DTensor) else p
        total += i * local.detach().view(torch.int32).sum(dtype=torch.long).cpu()
    total = total.to(local.device)
    dist.all_reduce(total)
    return int(total)


def digest(problems) -> str:
    """Of the rows in their order: the position in the stream means nothing in others."""
    sha = hashlib.sha256()
    for problem in problems:
        sha.update(json.dumps(problem, default=str).encode())
    return sha.hexdigest()


def shuffled_epochs(problems: list[dict], seed: int):
    """Endless; after n problems, its whole state is n."""
    for epoch in itertools.count():
        for i in np.random.default_rng([seed, epoch]).permutation(len(problems)):
            yield problems[i]


def training_tensors(models: dict) -> dict:
    """Parameters and AdamW's moments of {name: (policy, optimizer)}: the live tensors, to save from or to load into.

    Tensors only: hyperparameters come from the config, and loading never unpickles an object.
    """
    tensors = {}
    for name, (policy, optimizer) in models.items():
        policy.reshard()
        for p in policy.parameters():
            if not optimizer.state[p]:  # before the first step; AdamW itself would start with these
                optimizer.state[p].update(step=torch.zeros((), dtype=torch.float32, device=p.device),
                                          exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        tensors[name] = {"model": {key: p.detach() for key, p in policy.named_parameters()},
                         "optimizer": {key: optimizer.state[p] for key, p in policy.named_parameters()}}
    return tensors


def save_hf(policy, weights, tokenizer, folder: Path, dtype: torch.dtype) -> bool:
    """weights: hf_weights(policy, dtype). A folder that `from_pretrained` and vLLM load: written beside, then renamed.

    A full disk is reported and stops nothing. Collective. -> False on rank 0 if the folder could not be written
    """
    keep, saved = dist.get_rank() == 0, True
    tensors = policy.model.state_dict(keep_vars=True)
    first = {id(p): name for name, p in reversed(tensors.items())}  # a tied one is saved under its first name
    state = {name: p.cpu() for name, p in weights if keep and first[id(tensors[name])] == name}
    if keep:
        tmp = folder.with_suffix(".tmp")
        shutil.rmtree(tmp, ignore_errors=True)
        try:
            try:
                policy.model.generation_config.validate(strict=True)
            except ValueError:  # a temperature without sampling can be loaded, but not saved
                policy.model.generation_config.do_sample = True
            policy.model.save_pretrained(tmp, state_dict=state)
            policy.model.config.dtype = dtype  # save_pretrained wrote the master weights'
            policy.model.config.save_pretrained(tmp)
            tokenizer.save_pretrained(tmp)
            shutil.rmtree(folder, ignore_errors=True)
            tmp.rename(folder)
        except Exception as error:  # safetensors and tokenizers raise their own
            tqdm.write(f"{folder} could not be written: {last_line(error)}")
            shutil.rmtree(tmp, ignore_errors=True)
            saved = False
    dist.barrier()
    return saved


def sha256(paths: list[Path]) -> dict[str, str]:
    """name -> digest; side by side, for the files of a big model are hundreds of GB."""
    def one(path):
        with open(path, "rb") as f:
            return path.name, hashlib.file_digest(f, "sha256").hexdigest()
    with ThreadPoolExecutor(8) as threads:
        return dict(threads.map(one, paths))


class Checkpoints:
    """The newest `keep` of a run: folder/step_NNNNNN/{tensors of each rank, state.json, manifest.json}.

    The manifest holds the SHA-256 of every other file and is written last, in a folder that is then renamed: a
    step_NNNNNN folder whose files match its manifest is complete. Any number of ranks can load it.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep, self.rank0 = folder, keep, dist.get_rank() == 0
        # saving talks beside the training, so it has its own group; rank 0 hashes while the others wait
        self.group = dist.new_group(backend="gloo", timeout=timedelta(hours=2))
        self.saving = None

    def save(self, models: dict, state: dict):
        """Copies the tensors, then writes them in the background. state: JSON values, "step" among them.

        A save that fails (a full disk) is reported, and neither stops the run nor touches an older checkpoint.
        """
        self.wait()
        target = self.folder / f"step_{state['step']:06d}"
        if target.exists():
            return
        written = dcp.async_save(training_tensors(models), checkpoint_id=target.with_suffix(".tmp"),
                                 process_group=self.group)
        self.saving = threading.Thread(target=self._finish, args=(written, target, json.dumps(state)))
        self.saving.start()

    def _finish(self, written, target: Path, state: str):
        error, tmp = written.exception(), target.with_suffix(".tmp")  # rank 0 has an error if any rank has one
        if not self.rank0:
            return
        try:
            if error is None:
                (tmp / "state.json").write_text(state)
                manifest = sha256(sorted(tmp.iterdir()))
                (tmp / "manifest.json").write_text(json.dumps(manifest, indent=1))
                tmp.rename(target)
                for old in sorted(self.folder.glob("step_??????"))[:-self.keep]:
                    shutil.rmtree(old, ignore_errors=True)
        except OSError as full:
            error = full
        if error is not None:
            tqdm.write(f"checkpoint {target.name} could not be saved, older ones are untouched: {last_line(error)}")
            shutil.rmtree(tmp, ignore_errors=True)

    def wait(self):
        """Until the last save is on disk."""
        if self.saving is not None:
            self.saving.join()

    def newest(self) -> dict | None:
        """State of the newest complete checkpoint; None if the run never wrote one. ValueError if none is intact.

        Damaged ones are named and set aside as step_NNNNNN.bad; what a kill left half-written is deleted.
        """
        found = [None]
        if self.rank0:
            for half in self.folder.glob("step_*.tmp"):
                shutil.rmtree(half)
            for path in sorted(self.folder.glob("step_??????"), reverse=True):
                if reason := damage(path):
                    tqdm.write(f"{path} is skipped: {reason}")
                    shutil.rmtree(path.with_suffix(".bad"), ignore_errors=True)
                    path.rename(path.with_suffix(".bad"))
                else:
                    found = [json.loads((path / "state.json").read_text())]
                    break
            if found == [None] and any(self.folder.glob("step_*.bad")):
                found = [ValueError(f"{self.folder}: no checkpoint is intact; restore one, or start again with --overwrite")]
        dist.broadcast_object_list(found, src=0, group=self.group)
        if isinstance(found[0], ValueError):
            raise found[0]
        return found[0]

    def restore(self, models: dict, state: dict) -> bool:
        """Models, optimizers and `state` of the newest checkpoint; False if there is none yet. Collective.

        ValueError if its model or data are others than those of `state`.
        """
        saved = self.newest()
        if saved is None:
            return False
        for key, what in (("model", "weights of --model"), ("data", "problems, --train_data or --val_data,")):
            if saved[key] != state[key]:
                raise ValueError(f"--resume {self.folder.parent}: the {what} are not those that the run began with")
        self.load(models, saved["step"])
        state |= saved
        return True

    def load(self, models: dict, step: int):
        """Into the live tensors, from any number of ranks to any other."""
        dcp.load(training_tensors(models), checkpoint_id=self.folder / f"step_{step:06d}",
                 process_group=self.group)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint folder; None if it is complete."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        digests = sha256([path / name for name in manifest])
        wrong = [name for name in manifest if digests[name] != manifest[name]]
    except (OSError, ValueError) as error:
        return f"incomplete ({error})"
    return f"{wrong[0]} does not match its checksum" if wrong else None
