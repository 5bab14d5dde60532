"""A source without the near-duplicates of another."""

import dataclasses
import json
import pickle

import pytest

from t2x.cli import main
from t2x.data import Deduplicated, JsonLines, Source, TextFiles

LINES = ['one two three', 'four five six', 'One, two: three!', 'seven eight', 'four five six']
KEPT = [0, 1, 3]


@pytest.fixture
def files(tmp_path):
  for name in ('train', 'validation'):
    (tmp_path / f'{name}.txt').write_text('\n'.join(LINES))
  paths = {name: str(tmp_path / f'{name}.txt') for name in ('train', 'validation')}
  return TextFiles(**paths, per_line=True)


def texts(examples):
  return [example['text'] for example in examples]


def test_similar_examples_of_the_split_are_omitted(files):
  source = Deduplicated(source=files, ngram=2)
  kept = source.load('train')
  assert texts(kept) == [kept[i]['text'] for i in range(len(kept))] == [LINES[i] for i in KEPT]
  assert kept[-1]['text'] == LINES[3]
  with pytest.raises(IndexError):
    kept[3]
  assert texts(source.load('validation')) == LINES
  info = source.info()
  assert (info['examples'], info['kept'], info['pairs']) == (5, 3, [[2, 0], [4, 1]])
  assert info['bytes'] == sum(map(len, LINES))


def test_it_is_a_source(files):
  source = Deduplicated(source=files, fields=['text'])
  assert isinstance(source, Source) and source.splits() == ('train', 'validation')
  assert pickle.loads(pickle.dumps(source)) == source
  changes = {'ngram': 3, 'threshold': 0.5, 'split': 'validation', 'fields': ('text', 'name')}
  others = [dataclasses.replace(source, **{name: value}) for name, value in changes.items()]
  assert len({one.fingerprint() for one in (source, files, *others)}) == 6


def test_it_is_described_by_the_settings_that_differ(files):
  described = Deduplicated(source=files, ngram=2).describe()
  assert described == f'Deduplicated(source={files.describe()}, ngram=2)'
  assert 'test=None' not in described


def test_duplicates_are_searched_once(files, monkeypatch):
  source = Deduplicated(source=files)
  source.load('train')
  monkeypatch.setattr(TextFiles, 'load', lambda self, split: list(LINES))
  assert list(Deduplicated(source=files).load('train')) == [LINES[i] for i in KEPT]


def test_pairs_are_compared_in_both_fields(tmp_path):
  pairs = [('a b', 'c'), ('a b', 'd'), ('a b', 'c')]
  lines = [json.dumps({'source': source, 'target': target}) for source, target in pairs]
  (tmp_path / 'pairs.jsonl').write_text('\n'.join(lines))
  source = JsonLines(train=str(tmp_path / 'pairs.jsonl'))
  both = Deduplicated(source=source, fields=('source', 'target')).load('train')
  assert [example['target'] for example in both] == ['c', 'd']
  assert len(Deduplicated(source=source, fields=('source',)).load('train')) == 1


def test_invalid_settings_are_errors(files, message):
  assert "no split 'test'" in message(Deduplicated, source=files, split='test')
  source = Deduplicated(source=files, fields=('target',))
  assert "example 0 has no text 'target'" in message(source.load, 'train')


@pytest.fixture
def config(files, tmp_path):
  path = tmp_path / 'data.gin'
  path.write_text(
    'Experiment.task = @CausalLM()\n'
    'CausalLM:\n  source = @TextFiles()\n  tokenizer = @Bytes()\n  length = 16\n'
    f"TextFiles:\n  train = '{files.train}'\n  validation = '{files.validation}'\n  per_line = True\n"
  )
  return str(path)


def test_the_command_counts_them_and_writes_the_others(config, tmp_path, capsys):
  assert main(['data', 'dedup', config, '--ngram', '2', '--out', f'{tmp_path}/kept.jsonl']) == 0
  out = capsys.readouterr().out
  assert 'train: 5 examples, 0.0 MB of text; 2 near-duplicates (40.00%), 3 others' in out
  assert 'omitted example 2: One, two: three!\n  kept example 0: one two three' in out
  written = JsonLines(train=f'{tmp_path}/kept.jsonl').load('train')
  assert texts(written) == [LINES[i] for i in KEPT]
  assert main(['data', 'dedup', config, '--threshold', '0.5']) == 0
  assert 'set CausalLM.source to Deduplicated(source=' in capsys.readouterr().out


def test_a_config_trains_without_them(config, capsys):
  settings = ['--gin.CausalLM.source=@Deduplicated()', '--gin.Deduplicated.source=@TextFiles()']
  assert main(['data', 'inspect', config, '--statistics', *settings]) == 0
  out = capsys.readouterr().out
  assert 'train: 3 examples' in out and 'validation: 5 examples' in out


def test_the_overlap_of_splits_is_printed(config, capsys):
  assert main(['data', 'inspect', config, '--check-overlap', '--overlap-ngram', '3']) == 0
  out = capsys.readouterr().out
  assert 'validation: 4 of 5 examples (80.00%) share a 3-gram of words with the training' in out
  assert '1 of 5 examples (20.00%) have fewer than 3 words: 1 of them equal a training' in out


def test_invalid_arguments_are_errors(config, capsys, tmp_path):
  assert main(['data', 'inspect', config, '--overlap-ngram', '3']) == 2
  assert '--overlap-ngram has no effect without --check-overlap' in capsys.readouterr().err
  assert main(['data', 'dedup', config, '--out', f'{tmp_path}/no/kept.jsonl']) == 2
  assert f'the folder {tmp_path}/no does not exist' in capsys.readouterr().err
  assert main(['data', 'dedup', 'configs/runs/vit_digits.gin']) == 2
  assert 't2x data dedup needs a task over text' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    main(['data', 'dedup', config, '--threshold', '0'])
  assert 'must be above 0 and at most 1' in capsys.readouterr().err
