"""Prompts are read and checked before anything else, and an old output stays until there is a new one."""

import json
import os

import pytest

from t2x.base.errors import UserError
from t2x.tasks import CausalLM


def lines(*prompts):
  return b''.join(json.dumps({'prompt': prompt}).encode() + b'\n' for prompt in prompts)


FEW = ('--max-new-tokens', 2, '--greedy', '--batch-size', 2)


def test_the_output_does_not_replace_the_input(run, t2x, tmp_path):
  file = tmp_path / 'both.jsonl'
  file.write_bytes(lines('the', 'a', 'red'))
  code, _, err = t2x('generate', run, '--input', file, '--output', file, *FEW)
  assert (code, file.read_bytes()) == (2, lines('the', 'a', 'red'))
  assert f'--output {file} would replace a file' in err


def test_the_output_has_a_line_for_each_prompt(run, t2x, tmp_path):
  source, target = tmp_path / 'in.jsonl', tmp_path / 'out.jsonl'
  source.write_bytes(lines('the', 'a', 'red'))
  code, out, err = t2x('generate', run, '--input', source, '--output', target, *FEW)
  assert (code, out) == (0, ''), err
  assert f'wrote {target}\n' in err
  answers = [json.loads(line) for line in target.read_text().splitlines()]
  assert [answer['prompt'] for answer in answers] == ['the', 'a', 'red']
  assert all(len(answer['tokens']) <= 2 for answer in answers)


def test_only_a_line_feed_ends_a_line_and_a_mark_may_begin_the_file(run, t2x, tmp_path):
  odd = ['a\u2028b\x85c', 'x\x0b\x0c\x1c\x1d\x1ey', '', 'ü']
  raw = [json.dumps({'prompt': prompt}, ensure_ascii=False) for prompt in odd]
  file = tmp_path / 'in.jsonl'
  file.write_bytes(b'\xef\xbb\xbf' + '\r\n'.join(raw).encode())
  code, out, err = t2x('generate', run, '--input', file, '--json', *FEW)
  assert code == 0, err
  assert [json.loads(line)['prompt'] for line in out.strip('\n').split('\n')] == odd


def test_a_failure_leaves_the_old_output(run, t2x, tmp_path, monkeypatch):
  source, target = tmp_path / 'in.jsonl', tmp_path / 'out.jsonl'
  source.write_bytes(lines('the', 'a', 'red'))
  target.touch()
  generate, seen = CausalLM.generate, []

  def fails(*args, **kwargs):
    seen.append(args)
    if len(seen) == 2:
      raise RuntimeError('lost')
    return generate(*args, **kwargs)

  monkeypatch.setattr(CausalLM, 'generate', fails)
  code, _, err = t2x('generate', run, '--input', source, '--output', target, *FEW)
  assert (code, target.read_bytes()) == (1, b''), err
  assert len(list(tmp_path.glob('out*'))) == 1


def test_a_link_stays_and_a_device_is_written_to(run, t2x, tmp_path):
  (tmp_path / 'real.jsonl').touch()
  (tmp_path / 'link.jsonl').symlink_to('real.jsonl')
  prompt = ('--prompt', 'the')
  assert t2x('generate', run, *prompt, '--output', tmp_path / 'link.jsonl', *FEW)[0] == 0
  assert (tmp_path / 'link.jsonl').is_symlink()
  assert json.loads((tmp_path / 'real.jsonl').read_text())['prompt'] == 'the'
  assert t2x('generate', run, *prompt, '--output', os.devnull, *FEW)[0] == 0
  assert not os.path.isfile(os.devnull)


BAD = {
  'empty': (b'', 'in.jsonl is empty'),
  'a mark alone': (b'\xef\xbb\xbf', 'in.jsonl is empty'),
  'not JSON': (lines('a') + b'text\n', 'in.jsonl:2: not JSON'),
  'a blank line': (lines('a') + b'\n' + lines('b'), 'in.jsonl:2: not JSON'),
  'a list': (b'["a"]\n', 'in.jsonl:1: not a JSON object with a string under "prompt"'),
  'another key': (b'{"text": "a"}\n', 'in.jsonl:1: not a JSON object with a string under "prompt"'),
  'a number': (b'{"prompt": 3}', 'in.jsonl:1: not a JSON object with a string under "prompt"'),
  'no value': (b'{"prompt": null}', 'in.jsonl:1: not a JSON object with a string under "prompt"'),
  'half a pair': (b'{"prompt": "a\\ud800"}', 'in.jsonl:1: unpaired surrogate at character 1'),
  'not UTF-8': (lines('a') + b'{"prompt": "\xff"}', 'in.jsonl:2: not UTF-8 (byte 12 of the line)'),
  'too deep': (b'[' * 100_000, 'in.jsonl:1: not JSON'),
}


@pytest.mark.parametrize('name', BAD)
def test_an_invalid_prompt_is_an_error_with_its_line_before_the_run_is_opened(name, t2x, tmp_path):
  content, told = BAD[name]
  source, target = tmp_path / 'in.jsonl', tmp_path / 'out.jsonl'
  source.write_bytes(content)
  target.write_text('old')
  code, _, err = t2x('generate', tmp_path / 'none', '--input', source, '--output', target)
  assert (code, target.read_text()) == (2, 'old')
  assert told in err
  assert err.count('\n') == 1


@pytest.mark.parametrize(
  ('flags', 'told'),
  [
    (('--batch-size', '-1'), '--batch-size: must be at least 1'),
    (('--batch-size', '0'), '--batch-size: must be at least 1'),
    (('--max-new-tokens', '0'), '--max-new-tokens: must be at least 1'),
    (
      ('--temperature', '1e-300'),
      '--temperature: must be at least 1e-6 and at most 1e6, got 1e-300',
    ),
    (('--temperature', '1e300'), '--temperature: must be at least 1e-6 and at most 1e6, got 1e300'),
    (('--repetition-penalty', '1e-300'), '--repetition-penalty: must be at least 1e-6'),
    (
      ('--min-new-tokens', '5', '--max-new-tokens', '3'),
      '--min-new-tokens 5 is more than --max-new-tokens 3',
    ),
    (('--min-new-tokens', '129'), '--min-new-tokens 129 is more than --max-new-tokens 128'),
    (('--num-return', '1.5'), "--num-return: must be an integer, got '1.5'"),
    (('--output', '{folder}'), 'is a folder: pass a file'),
    (('--output', '{folder}/none/out.jsonl'), 'none does not exist'),
    (('--prompt', 'b\udcff'), '--prompt 2: unpaired surrogate at character 1'),
  ],
)
def test_invalid_flags_are_errors_before_the_run_is_opened(flags, told, t2x, tmp_path):
  given = [flag.format(folder=tmp_path) for flag in flags]
  code, _, err = t2x('generate', tmp_path / 'none', '--prompt', 'a', *given)
  assert code == 2
  assert told in err.splitlines()[-1]


def test_a_prompt_or_an_input_is_required(t2x, tmp_path):
  code, _, err = t2x('generate', tmp_path / 'none')
  assert code == 2
  assert '--prompt' in err and '--input' in err


def test_the_task_checks_all_prompts_first(run, t2x, tmp_path, monkeypatch):
  def check_prompt(self, prompt):
    if prompt == 'a':
      raise UserError('not this one')

  monkeypatch.setattr(CausalLM, 'check_prompt', check_prompt)
  monkeypatch.delattr(CausalLM, 'generate')
  source, target = tmp_path / 'in.jsonl', tmp_path / 'out.jsonl'
  source.write_bytes(lines('the', 'a'))
  code, _, err = t2x('generate', run, '--input', source, '--output', target)
  assert (code, target.exists()) == (2, False)
  assert err.splitlines()[-1].endswith('in.jsonl:2: not this one')
