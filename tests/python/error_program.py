"""Run by test_errors.py under torchrun, on two ranks: the cases of error_cases/ in real processes. Prints the complaints of rank 0."""

import sys
from datetime import timedelta

import torch.distributed as dist
from error_catalogue import alike, message_of, outcome_of, sections


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    complaints = []
    for name, section in sections():
        for case in section.CASES:
            if case.of_threads:
                continue
            error, in_step = outcome_of(section.SETUP, case)
            here = (type(error).__name__, alike(message_of(error)) if error else "", in_step)
            everywhere = [here, here]
            dist.all_gather_object(everywhere, here)
            if any(kind != case.error.__name__ for kind, _, _ in everywhere) or (
                not case.is_of_rank and everywhere[0] != everywhere[1]
            ):
                complaints.append(f"{name}: {case.title}: {everywhere}")
            elif not in_step:
                complaints.append(f"{name}: {case.title}: ranks are out of step")
    if dist.get_rank() == 0:
        sys.stdout.write("\n".join([*complaints, "all cases ran", ""]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
