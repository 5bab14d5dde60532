"""Options that are wrong, have no effect or contain secrets are refused with one line."""

from pathlib import Path

import pytest

from t2x.cli import main

ROOT = Path(__file__).parents[2]
QUICK = 'configs/runs/quickstart.gin'
SLURM = ('slurm', QUICK, '--gpus-per-node', '8')
KUBERNETES = ('kubernetes', QUICK, '--image', 'i')
SKY = ('skypilot', QUICK, '--accelerators', 'H100:8', '--storage', 's3://b')
LOCAL = ('local', QUICK, '--cpu-devices', '1')
TPU = ('skypilot', QUICK, '--storage', 's3://b', '--accelerators')
SWEEP = 'experiments/feed_forward/sweep.gin'


@pytest.mark.parametrize(
  'words, message',
  [
    ((*SLURM, '--time', '1-'), "--time '1-': must be MINUTES"),
    (
      (*SLURM, '--time', '2', '--warn', '120'),
      '--warn 120: must be positive and less than the 120',
    ),
    ((*SLURM, '--sbatch=--signal=USR1'), 'the file sets --signal (--warn): remove it'),
    ((*SLURM, '--sbatch=-p gpu'), 'must be --NAME or --NAME=VALUE'),
    ((*SLURM, '--sbatch=--export=ALL,HF_TOKEN=a'), '--sbatch HF_TOKEN: secrets are not written'),
    ((*SLURM, '--parallel', '3'), '--parallel has no effect without a sweep file'),
    ((*SLURM, '--confirm'), '--confirm has no effect without a sweep file'),
    (('slurm', QUICK, '--cpu-devices', '1', '--task-per', 'gpu'), 'requires --gpus-per-node'),
    (('slurm', SWEEP, '--cpu-devices', '1', '--nodes', '2'), '--nodes has no effect on a sweep'),
    (('slurm', SWEEP, QUICK, '--cpu-devices', '1'), 'is a sweep file: only t2x launch slurm'),
    (('local', SWEEP, '--cpu-devices', '1'), 'is a sweep file: only t2x launch slurm'),
    (KUBERNETES, '--gpus-per-node or --tpu is required'),
    (
      (*KUBERNETES, '--gpus-per-node', '8', '--topology', '2x2'),
      '--topology has no effect without',
    ),
    ((*KUBERNETES, '--tpu', 'v5e', '--nodes', '2'), '--nodes has no effect with --tpu'),
    ((*KUBERNETES, '--tpu', 'v5p', '--topology', '4x4'), 'must have 3 dimensions for v5p'),
    ((*KUBERNETES, '--tpu', 'v5e'), '--tpu requires --topology'),
    ((*KUBERNETES, '--gpus-per-node', '8', '--run', 'runs/a'), 'must be inside /shared'),
    (
      (*KUBERNETES, '--gpus-per-node', '8', '--claim', 'A b'),
      "--claim 'A b': must have at most 63",
    ),
    ((*SKY, '--nodes', '2'), 'nodes see the files of other nodes in a bucket with a delay'),
    ((*SKY, '--run', '/shared/../a'), 'must be inside /shared'),
    ((*TPU, 'tpu-v7-8:1'), 'must be one slice of a known kind'),
    ((*TPU, 'tpu-v6e-8:2'), 'must be one slice of a known kind'),
    ((*TPU, 'tpu-v6e-8:1', '--nodes', '2'), '`t2x launch kubernetes` starts several slices'),
    ((*LOCAL, '--name', 'A'), "--name 'A': must have at most 40 lower-case letters"),
    ((*LOCAL, '--env', 'A'), "--env 'A' has no value"),
    ((*LOCAL, '--env', 'A-B=1'), "--env 'A-B': must be the name"),
    ((*LOCAL, '--setup', 'a\nb'), 'line breaks cannot be rendered'),
    ((*LOCAL, '--submit'), '--submit requires --out FILE'),
  ],
)
def test_a_wrong_option_is_one_line(words, message, launch):
  code, output = launch(*words)
  assert code == 2
  (line,) = output.err.splitlines()
  assert message in line
  assert not output.out


@pytest.mark.parametrize(
  'words, advice',
  [
    (SLURM, 'export it in the shell that calls sbatch'),
    ((*KUBERNETES, '--gpus-per-node', '8'), 'kubectl create secret'),
    (SKY, 'pass --secret NAME'),
    (LOCAL, 'export it in the shell'),
  ],
)
@pytest.mark.parametrize(
  'option',
  [
    ('--env', 'WANDB_API_KEY=abc'),
    ('--env', 'hf_token=abc'),
    ('--env', 'AWS_ACCESS_KEY_ID=abc'),
    ('--setup', 'export MY_SECRET=abc'),
    ('--setup', 'AWS_ACCESS_KEY_ID=abc true'),
  ],
)
def test_secrets_are_refused_with_a_way_to_pass_them(words, advice, option, launch):
  code, output = launch(*words, *option)
  assert code == 2
  assert 'secrets are not written to files' in output.err and advice in output.err
  assert 'abc' not in output.err + output.out


def test_options_of_programs_are_no_secrets(launch):
  code, output = launch(*LOCAL, '--setup', 'sort --key=2 names; gpg --token=x')
  assert code == 0, output.err
  assert 'sort --key=2' in output.out


def test_an_edited_file_is_kept(launch, tmp_path):
  path = tmp_path / 'run.sh'
  assert launch(*LOCAL, '--out', path)[0] == 0
  assert launch(*LOCAL, '--out', path)[0] == 0
  path.write_text('edited')
  code, output = launch(*LOCAL, '--out', path)
  assert code == 2 and 'exists with other content' in output.err
  assert path.read_text() == 'edited'


def test_a_missing_engine_is_an_error_and_writes_no_file(launch, tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', '')
  path = tmp_path / 'run.sbatch'
  code, output = launch(*SLURM, '--out', path, '--submit')
  assert code == 1 and 'sbatch is not installed on this machine: remove --submit' in output.err
  assert not path.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  'words, message',
  [
    ((QUICK, 'configs/meshes/gpu_8.gin', '--nodes', '4'), 'fsdp 8 does not fit 32 devices'),
    ((QUICK, '--gin.Trainer.batch_size=12'), 'does not divide over the mesh axes'),
    (('missing.gin',), 'missing.gin'),
  ],
)
def test_a_config_that_does_not_fit_the_devices_is_an_error(words, message, monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  code = main(['launch', 'slurm', *words, '--gpus-per-node', '8'])
  output = capsys.readouterr()
  assert (code, output.out) == (2, '')
  assert message in output.err


def test_every_target_has_help(launch):
  for target in ('slurm', 'kubernetes', 'skypilot', 'local'):
    code, output = launch(target, '--help')
    assert code == 0 and '--submit' in output.out and 'FILE' in output.out
