"""Data of an experiment, and what a run has recorded."""

from t2x.data import Bytes
from t2x.data.sources.files import TextFiles
from t2x.experiments import data_of
from t2x.tasks import CausalLM, Losses
from t2x.train import Experiment


def test_data_is_identified_by_its_content_under_its_settings(tmp_path):
  paths = [tmp_path / name for name in ('a.txt', 'b.txt')]
  for path in paths:
    path.write_text('one\n')
  sources = [TextFiles(train=str(path), validation=str(path)) for path in paths]
  experiment = Experiment(
    task=CausalLM(source=sources[0], tokenizer=Bytes(), length=8),
    evaluations={'other': Losses(task=CausalLM(source=sources[1], tokenizer=Bytes(), length=8))},
  )
  before = data_of(experiment)
  assert list(before) == [source.describe() for source in sources]
  paths[1].write_text('two\n')
  after = data_of(experiment)
  assert [before[name] == after[name] for name in before] == [True, False]
  # Training reports what is missing.
  paths[1].unlink()
  assert data_of(experiment) == {}
