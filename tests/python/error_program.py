"""Run by error_catalogue.py under torchrun, on two ranks: the cases of error_cases/ in real processes. Rank 0 prints JSON: complaints, and what
the cases that processes alone have raise.
"""

import json
import sys
from datetime import timedelta

import torch.distributed as dist
from error_catalogue import alike, message_of, outcome_of, sections


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    complaints, messages = [], {}
    for name, section in sections():
        for case in section.CASES:
            if case.of_threads:
                continue
            title = f"{name}: {case.title}"
            error, in_step = outcome_of(section.SETUP, case)
            here = (type(error).__name__, alike(message_of(error)) if error else "", in_step)
            everywhere = [here, here]
            dist.all_gather_object(everywhere, here)
            if [kind for kind, _, _ in everywhere] != [case.error_on(rank).__name__ for rank in range(2)] or (
                not case.is_of_rank and case.only_on is None and everywhere[0] != everywhere[1]
            ):
                complaints.append(f"{title}: {everywhere}")
            elif not in_step:
                complaints.append(f"{title}: ranks are out of step")
            if case.of_processes:
                messages[title] = everywhere[case.only_on or 0][:2]
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps([complaints, messages]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
