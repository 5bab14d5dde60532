"""Sources that are prepared once, as a whole or not at all."""

from pathlib import Path

from tiny_builders import Counted


def test_prepared_once_and_again_when_the_fingerprint_changes(tmp_path, capfd):
  log = str(tmp_path / 'log')
  source = Counted(log=log)
  assert [e['text'] for e in source.load('train')] == [f'text {i}' for i in range(50)]
  assert source.load('test')[-1] == {'text': 'text 2'}
  assert Path(log).read_text() == 'made\n'
  assert len(Counted(log=log, count=10).load('train')) == 10
  assert Path(log).read_text() == 'made\nmade\n'
  said = capfd.readouterr()
  assert said.out == said.err == ''


def test_missing_and_truncated_files_are_errors(cache, message):
  Counted().load('train')
  (folder,) = (cache / 'built').glob('counted-*-50')
  for path in folder.glob('train.jsonl'):
    path.unlink()
  assert f'{folder} cannot be read' in message(Counted().load, 'train')
  assert "no split 'eval' in Counted(): must be one of train, test" in message(
    Counted().load, 'eval'
  )
