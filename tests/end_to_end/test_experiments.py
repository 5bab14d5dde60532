"""Each of four experiments trains, evaluates and generates from its gin file."""

import json
import math

import pytest

NAMES = ['causal_lm', 'masked_lm', 'translation', 'image_classification']
METRICS = {
  'causal_lm': {'loss', 'accuracy', 'perplexity', 'bits_per_byte', 'eval_tokens'},
  'masked_lm': {'loss', 'masked_accuracy', 'perplexity', 'eval_tokens'},
  'translation': {
    *('loss', 'accuracy', 'perplexity', 'eval_tokens'),
    *(f'translations/{name}' for name in ('bleu', 'chrf', 'exact_match', 'examples')),
  },
  'image_classification': {
    f'{split}{name}'
    for split in ('', 'test/')
    for name in ('loss', 'accuracy', 'top5_accuracy', 'eval_examples')
  },
}


@pytest.mark.parametrize('name', NAMES)
def test_training_evaluation_and_generation_agree(name, experiment, t2x, metrics, tmp_path):
  out = tmp_path / 'run'
  code, stdout, stderr = t2x('train', experiment(name), '--out', out)
  assert code == 0, stderr
  assert stdout == ''
  for file in ('config.gin', 'metrics.jsonl', 'summary.txt', 'checkpoints'):
    assert (out / file).exists(), file
  assert list(out.glob('**/events.out.tfevents*'))

  lines = metrics(out)
  train = [line for line in lines if line['split'] == 'train']
  evals = [line for line in lines if line['split'] == 'eval']
  assert [line['step'] for line in train] == [3, 6, 9, 12]
  assert [line['step'] for line in evals] == [6, 12]
  signatures = {f'translations/{metric}_signature' for metric in ('bleu', 'chrf')}
  texts = signatures if name == 'translation' else set()
  assert evals[-1].keys() == METRICS[name] | texts | {'step', 'split'}
  assert all('version:' in evals[-1][name] for name in texts)
  assert evals[-1].get('translations/examples', 4.0) == 4.0
  assert evals[-1]['loss'] < evals[0]['loss']
  unit = 'examples' if name == 'image_classification' else 'tokens'
  first = json.loads((out / 'metrics.jsonl').read_text().splitlines()[0])
  assert first[f'{unit}_per_second'] > 0

  has_evaluations = name != 'masked_lm'
  code, stdout, _ = t2x('eval', out, '--json', *(('--limit', 4) if has_evaluations else ()))
  assert code == 0
  again = json.loads(stdout)
  assert again['step'] == 12
  # --limit also applies to the evaluator of the test images.
  assert again.get('test/eval_examples', 4) == 4
  for metric in METRICS[name] - {f'test/{metric}' for metric in METRICS[name]}:
    assert math.isclose(again[metric], evals[-1][metric], rel_tol=1e-6), metric
  if name in ('causal_lm', 'translation'):
    generates_in_order(t2x, out, tmp_path)


def generates_in_order(t2x, run, folder):
  prompts = ['the cat', 'a', 'red and blue then']
  flags = ['--max-new-tokens', 6, '--json']
  code, stdout, _ = t2x('generate', run, *[f'--prompt={p}' for p in prompts], *flags)
  assert code == 0
  answers = [json.loads(line) for line in stdout.splitlines()]
  assert [answer['prompt'] for answer in answers] == prompts
  for answer in answers:
    assert len(answer['tokens']) == len(answer['log_probs']) <= 6
    assert all(p <= 0 for p in answer['log_probs'])
  source, target = folder / 'in.jsonl', folder / 'out.jsonl'
  source.write_text(''.join(json.dumps({'prompt': p}) + '\n' for p in prompts))
  flags = ['--max-new-tokens', 6, '--beam', 2, '--num-return', 2]
  code, stdout, _ = t2x('generate', run, '--input', source, '--output', target, *flags)
  assert (code, stdout) == (0, '')
  answers = [json.loads(line) for line in target.read_text().splitlines()]
  assert [answer['prompt'] for answer in answers] == prompts
  assert all(len(answer['others']) == 1 for answer in answers)


def test_an_evaluation_prints_its_number_of_examples_and_that_weights_are_averages(
  experiment, t2x, metrics, tmp_path
):
  out = tmp_path / 'run'
  flags = ['--gin.Trainer.eval_batches=1', '--gin.Trainer.ema_decay=0.9']
  assert t2x('train', experiment('causal_lm'), '--out', out, *flags)[0] == 0
  first, last = (line for line in metrics(out) if line['split'] == 'eval')
  # The last evaluation reads the whole split.
  assert 0 < first['eval_tokens'] < last['eval_tokens']
  assert first['weights'] == last['weights'] == 'ema'
  code, told, _ = t2x('eval', out, '--json')
  assert code == 0
  assert json.loads(told)['weights'] == 'ema'
  assert json.loads(told)['eval_tokens'] == last['eval_tokens']


def test_a_quiet_run_prints_its_results_and_logs_everything(experiment, t2x, tmp_path):
  out = tmp_path / 'run'
  code, stdout, stderr = t2x('train', experiment('causal_lm'), '--out', out, '--quiet')
  assert code == 0, stderr
  assert stdout == '' and stderr.lstrip().startswith('finished ')
  assert 'step 6 eval' not in stderr and f't2x look {out}' in stderr
  log = (out / 'log.txt').read_text()
  assert all(text in log for text in ('run folder', 'LanguageModel', 'step 6 eval', 'finished'))


def test_bf16_accumulation_and_ema_train(experiment, t2x, metrics, tmp_path):
  out = tmp_path / 'run'
  flags = ['--gin.Trainer.compute_dtype=bfloat16', '--gin.Trainer.accumulate=2']
  flags += ['--gin.Trainer.ema_decay=0.9', '--gin.dropout_rate=0.1', '--verbose']
  code, _, stderr = t2x('train', experiment('causal_lm'), '--out', out, *flags)
  assert code == 0, stderr
  assert 'mixer.q.kernel' in stderr  # The table of parameters.
  losses = [line['loss'] for line in metrics(out) if line['split'] == 'train']
  assert losses[-1] < losses[0]
