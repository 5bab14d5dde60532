"""Rendered JobSets, against a schema of the parts that they use."""

import copy
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from t2x.cli import parser

SCHEMA = yaml.safe_load((Path(__file__).parent / 'jobset_schema.yaml').read_text())
QUICK = ('kubernetes', 'configs/runs/quickstart.gin', '--image', 'example.com/t2x:1')
GPUS = (*QUICK, '--nodes', '2', '--gpus-per-node', '8')
TPUS = (*QUICK, '--tpu', 'v5e', '--topology', '4x8', '--slices', '2')


@pytest.fixture
def job_set(launch):
  """`job_set(*words)` renders, validates and returns a JobSet."""

  def render(*words):
    code, output = launch(*words)
    assert code == 0, output.err
    rendered = yaml.safe_load(output.out)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(rendered, SCHEMA)
    return rendered

  return render


def job_of(rendered):
  return rendered['spec']['replicatedJobs'][0]['template']['spec']


def container_of(rendered):
  (container,) = job_of(rendered)['template']['spec']['containers']
  return container


def arguments_of(rendered, index):
  """The parsed command of t2x in the pod of an index."""
  shell, option, script = container_of(rendered)['command']
  assert (shell, option) == ('sh', '-c')
  command = script.replace('\\\n', ' ').replace('"$JOB_COMPLETION_INDEX"', str(index))
  return parser().parse_args(command.splitlines()[-1].split()[2:])


def test_pods_of_gpu_nodes_find_each_other(job_set):
  rendered = job_set(*GPUS)
  job = job_of(rendered)
  assert (job['completionMode'], job['parallelism'], job['completions']) == ('Indexed', 2, 2)
  args = arguments_of(rendered, 1)
  assert (args.command, args.num_processes, args.process_id) == ('train', 2, 1)
  host, port = args.coordinator.split(':')
  name, domain = host.split('.')
  assert (name, domain) == (f'{domain}-workers-0-0', rendered['metadata']['name'])
  container = container_of(rendered)
  assert container['ports'] == [{'containerPort': int(port)}]
  assert container['resources']['limits'] == {'nvidia.com/gpu': 8}


def test_jax_detects_pods_of_tpu_slices(job_set):
  rendered = job_set(*TPUS)
  (slices,) = rendered['spec']['replicatedJobs']
  assert (slices['replicas'], job_of(rendered)['parallelism']) == (2, 8)
  assert job_of(rendered)['template']['spec']['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
    'cloud.google.com/gke-tpu-topology': '4x8',
  }
  assert container_of(rendered)['resources']['limits'] == {'google.com/tpu': 4}
  assert arguments_of(rendered, 0).coordinator is None


@pytest.mark.parametrize('words', [GPUS, TPUS])
def test_code_75_restarts_all_pods_and_code_2_ends_the_job_set(words, job_set):
  rendered = job_set(*words)
  rules = rendered['spec']['failurePolicy']['rules']
  pods = job_of(rendered)['podFailurePolicy']['rules']
  for index, (code, action) in enumerate(
    [(75, 'RestartJobSetAndIgnoreMaxRestarts'), (2, 'FailJobSet')]
  ):
    assert pods[index]['action'] == 'FailJob'
    assert pods[index]['onExitCodes'] == {
      'containerName': 't2x',
      'operator': 'In',
      'values': [code],
    }
    assert rules[index]['action'] == action
    assert rules[index]['onJobFailureMessagePatterns'] == [
      f'matching FailJob rule at index {index}$'
    ]
  assert job_of(rendered)['backoffLimit'] == 0


def test_texts_with_special_characters_keep_their_value(job_set):
  rendered = job_set(*GPUS, '--env', 'NOTE=a: "b" #c', '--env', 'YES=yes', '--secret', 'wandb')
  container = container_of(rendered)
  assert {'name': 'NOTE', 'value': 'a: "b" #c'} in container['env']
  assert {'name': 'YES', 'value': 'yes'} in container['env']
  assert container['envFrom'] == [{'secretRef': {'name': 'wandb'}}]


def expanded(text, variables):
  """What Kubernetes makes of a command or a value: `$$` is `$`, `$(NAME)` a variable if it is defined."""
  reference = r'\$(\$|\((\w+)\))'

  def replaced(match):
    return '$' if match[1] == '$' else variables.get(match[2], match[0])

  return re.sub(reference, replaced, text)


def test_setup_lines_and_variables_reach_the_shell_as_they_are(job_set):
  setup = ['  if true; then', '    echo $$ $(HOME) $$(X) $HOME; fi', 'echo "${X}" $$$ $']
  words = [word for line in setup for word in ('--setup', line)]
  container = container_of(job_set(*GPUS, *words, '--env', 'NOTE=$(HOME) $$ $X'))
  variables = {'HOME': '/root', 'X': 'x'}
  script = expanded(container['command'][2], variables)
  assert script.splitlines()[:3] == ['if true; then', *setup[1:]]
  values = {one['name']: expanded(one['value'], variables) for one in container['env']}
  assert values['NOTE'] == '$(HOME) $$ $X'


@pytest.mark.parametrize(
  'path, value',
  [
    (('spec', 'failurePolicy', 'rules', 0, 'action'), 'Restart'),
    (('spec', 'failurePolicy', 'rules', 0, 'name'), 'not a name'),
    (('spec', 'failurePolicy', 'maxRestart'), 3),
    (('spec', 'replicatedJobs', 0, 'replicas'), '2'),
    (
      ('spec', 'replicatedJobs', 0, 'template', 'spec', 'template', 'spec', 'restartPolicy'),
      'OnFailure',
    ),
    (('metadata', 'name'), 'A_b'),
  ],
)
def test_the_schema_refuses_errors(path, value, job_set):
  rendered = copy.deepcopy(job_set(*GPUS))
  *parents, last = path
  target = rendered
  for key in parents:
    target = target[key]
  target[last] = value
  with pytest.raises(jsonschema.ValidationError):
    jsonschema.validate(rendered, SCHEMA)
