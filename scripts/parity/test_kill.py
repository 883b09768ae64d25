"""A shorter scripts/kill_and_resume.py, and what TensorBoard sees of the run that it leaves."""

import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[2]


def test_killed_runs_resume_to_the_bit_and_log_every_step_once(tmp_path):
    command = [sys.executable, ROOT / "scripts/kill_and_resume.py", "--kills", "10", "--epochs", "8", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended after 10 kills, equal to the bit" in done.stdout
    killed = sorted(tmp_path.glob("killed-*"))[-1]
    events = EventAccumulator(str(killed / "tb"), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 8 * 6 + 1))
    assert [event.step for event in events.Scalars("eval/knn_accuracy")] == [12, 24, 36, 48]
