"""Runs trained here, exported: transformers loads the folder and generates the same tokens and texts."""

import json
from pathlib import Path

import numpy as np
import pytest

import t2x
from t2x.cli import main
from t2x.decode import AtCurrentLength, AverageLength, Beam, DiverseBeam, Greedy, Sampling
from t2x.decode.generation_config import fields_of, strategy_of

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
SHARED = """
d_model = 32
num_layers = 2
TokenEmbedding.vocab_size = 285
MultiHeadAttention.num_heads = 4
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @BPE()
  length = 64
  strategy = @Greedy()
BPE.vocab_size = 285
TextFiles:
  train = '{data}'
  validation = '{data}'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 3
  batch_size = 4
  schedule = @Constant()
Constant.peak = 1e-2
"""
FAMILIES = {
  'gpt2': "include '{models}/gpt2_small.gin'\nLearnedPositions.max_length = 64\nMLP.hidden_dim = 64\n",
  'llama': "include '{models}/llama2_7b.gin'\nGatedMLP.hidden_dim = 64\n"
  'MultiHeadAttention.num_kv_heads = 2\n',
  'gpt_neox': """
include '{models}/gpt2_small.gin'
LanguageModel.head = @LMHead
Decoder.encoding = @RoPE
Decoder.input_dropout = 0.0
RoPE.interleaved = False
RoPE.fraction = 0.25
Block.wiring = @PreNorm
MLP.hidden_dim = 64
dropout_rate = 0.0
""",
}


@pytest.mark.parametrize(
  'family',
  ['gpt2', *(pytest.param(name, marks=pytest.mark.nightly) for name in ('llama', 'gpt_neox'))],
)
def test_a_trained_run_generates_in_transformers_what_it_generates_here(
  family, tmp_path, monkeypatch
):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  data, config = tmp_path / 'text.txt', tmp_path / 'run.gin'
  data.write_text('the cat sees the dog and the red house near a tree. ' * 60)
  config.write_text(FAMILIES[family].format(models=MODELS) + SHARED.format(data=data))
  run, folder = tmp_path / 'run', tmp_path / 'exported'
  assert main(['train', str(config), '--out', str(run)]) == 0
  assert main(['convert', 'export', str(run), '--to', str(folder)]) == 0
  assert json.loads((folder / 'config.json').read_text())['model_type'] == family
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
  assert not theirs.generation_config.do_sample
  prompts = ['the cat', ' red house near']
  for prompt, ours in zip(prompts, t2x.load(run).generate(prompts, max_new_tokens=12), strict=True):
    ids = tokenizer(prompt, return_tensors='pt')
    found = theirs.generate(**ids, max_new_tokens=12)[0, ids['input_ids'].shape[1] :].tolist()
    assert found == ours['tokens']
    assert tokenizer.decode(found, skip_special_tokens=True) == ours['text']


CLASSIFIER = """
include '{run}/model.gin'
LanguageModel.head = @SequenceClassifier
SequenceClassifier.classifier = @PooledClassifier
PooledClassifier:
  num_classes = 3
  activation = @relu
Experiment.task = @SequenceClassification()
SequenceClassification:
  source = @JsonLines()
  tokenizer = @WordPiece()
  labels = ['x', 'y', 'z']
  length = 16
WordPiece.vocab_size = 45
JsonLines:
  train = '{data}'
  validation = '{data}'
Experiment.init_from = @InitFrom()
InitFrom.run = '{run}'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 3
  batch_size = 4
  schedule = @Constant()
Constant.peak = 1e-2
"""


def test_an_imported_and_fine_tuned_classifier_has_the_same_logits_in_transformers(
  tmp_path, monkeypatch, perturbed
):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  sizes = {'dim': 16, 'hidden_dim': 24, 'n_heads': 2, 'n_layers': 2, 'vocab_size': 45}
  config = transformers.DistilBertConfig(**sizes, max_position_embeddings=16)
  torch.manual_seed(0)
  pretrained = perturbed(transformers.DistilBertForMaskedLM(config), std=0.1)
  pretrained.save_pretrained(tmp_path / 'theirs')
  run, data = tmp_path / 'imported', tmp_path / 'data.jsonl'
  assert main(['convert', 'import', str(tmp_path / 'theirs'), '--out', str(run)]) == 0
  texts = ['the cat', 'a dog sees it', 'the red house', 'near a tree'] * 6
  lines = [{'text': text, 'label': 'xyz'[i % 3]} for i, text in enumerate(texts)]
  data.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  gin, tuned = tmp_path / 'classify.gin', tmp_path / 'tuned'
  gin.write_text(CLASSIFIER.format(run=run, data=data))
  assert main(['train', str(gin), '--out', str(tuned)]) == 0
  assert main(['convert', 'export', str(tuned), '--to', str(tmp_path / 'exported')]) == 0
  theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / 'exported')
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'exported')
  assert type(theirs) is transformers.DistilBertForSequenceClassification
  ids = tokenizer(texts[:4], padding=True, return_tensors='pt')
  with torch.no_grad():
    wanted = theirs.eval()(ids['input_ids'], ids['attention_mask']).logits.numpy()
  ours = t2x.load(tuned).logits(texts[:4])
  np.testing.assert_allclose(ours, wanted, atol=1e-5 * np.abs(wanted).max())
  # The body was trained: the first layer differs from that of the imported model.
  name = 'transformer.layer.0.ffn.lin1.weight'
  change = theirs.distilbert.get_parameter(name) - pretrained.distilbert.get_parameter(name)
  assert change.abs().max() > 1e-3


@pytest.mark.parametrize(
  'strategy',
  [
    Greedy(),
    Sampling(temperature=0.8, top_k=40),
    Sampling(top_p=0.9),
    Beam(3, AverageLength(2.0)),
  ],
)
def test_strategies_survive_generation_config(strategy):
  fields, missing = fields_of(strategy)
  assert missing == []
  assert strategy_of(fields) == (strategy, [])


def test_settings_that_generation_config_lacks_are_listed():
  assert fields_of(Beam(3))[1] == ['GNMT(alpha=0.6)']
  groups = DiverseBeam(4, AverageLength(), AtCurrentLength(), num_groups=2, strength=0.5)
  assert fields_of(groups)[1] == ['num_groups = 2, strength = 0.5']
