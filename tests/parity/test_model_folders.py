"""Folders of transformers with a tokenizer, through the command line: imported, fine-tuned for a step, exported."""

import json

import numpy as np
import pytest

import t2x
from t2x.cli import main

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

TEXT = 'the cat sees the dog and the red house near a tree. '
CHAT = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
SIZES = {
  'hidden_size': 32,
  'intermediate_size': 48,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'vocab_size': 300,
  'pad_token_id': 1,
  'bos_token_id': 0,
  'eos_token_id': 0,
}
LOCAL = {'sliding_window': 8}
CAUSAL = 'CausalLM'
# model_type -> fields, task.
FOLDERS = {
  'llama': ({'tie_word_embeddings': True}, CAUSAL),
  'mistral': (LOCAL, CAUSAL),
  'qwen2': (LOCAL | {'use_sliding_window': True, 'max_window_layers': 1}, CAUSAL),
  'qwen3': ({'head_dim': 8}, CAUSAL),
  'gemma2': (LOCAL | {'head_dim': 8}, CAUSAL),
  'gemma3_text': (LOCAL | {'head_dim': 8, 'num_hidden_layers': 6}, CAUSAL),
  'olmo2': ({}, CAUSAL),
  'phi': ({}, CAUSAL),
  'phi3': ({}, CAUSAL),
  'mamba2': (
    dict.fromkeys(('intermediate_size', 'num_attention_heads', 'num_key_value_heads'))
    | {'num_heads': 4, 'head_dim': 16, 'n_groups': 2, 'state_size': 6, 'chunk_size': 8},
    CAUSAL,
  ),
  'smollm3': ({'no_rope_layers': [1, 0]}, CAUSAL),
  'modernbert': (
    {'local_attention': 8, 'num_hidden_layers': 3, 'num_key_value_heads': None},
    'MaskedLM',
  ),
}
# Two kinds show what all others do.
FIRST = ('gemma3_text', 'modernbert')
FINE_TUNING = """
include '{run}/model.gin'
Experiment.init_from = @InitFrom()
InitFrom.run = '{run}'
Experiment.task = @{task}()
{task}:
  source = @TextFiles()
  tokenizer = @RunTokenizer()
  length = 32
RunTokenizer.run = '{run}'
TextFiles:
  train = '{data}'
  validation = '{data}'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 1
  batch_size = 2
  eval_every = 0
  schedule = @Constant()
Constant.peak = 1e-2
"""
CLASSES = {
  CAUSAL: transformers.AutoModelForCausalLM,
  'MaskedLM': transformers.AutoModelForMaskedLM,
}


def tokenizer():
  """A byte-level BPE tokenizer with a chat template."""
  import tokenizers

  model = tokenizers.ByteLevelBPETokenizer()
  special = ['<|end|>', '<|pad|>', '<|mask|>']
  model.train_from_iterator([TEXT] * 9, 300, show_progress=False, special_tokens=special)
  names = dict(zip(('eos_token', 'pad_token', 'mask_token'), special, strict=True))
  backend = model._tokenizer
  return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=CHAT, **names)


def fields(config):
  """Returns the fields of a config without those of the file."""
  left = ('_name_or_path', 'dtype', 'transformers_version')
  return {name: value for name, value in config.to_dict().items() if name not in left}


@pytest.mark.parametrize(
  'model_type',
  [name if name in FIRST else pytest.param(name, marks=pytest.mark.nightly) for name in FOLDERS],
)
def test_a_folder_is_kept_by_import_fine_tuning_and_export(model_type, perturbed, tmp_path):
  more, task = FOLDERS[model_type]
  given = {name: value for name, value in (SIZES | more).items() if value is not None}
  config = transformers.AutoConfig.for_model(model_type, **given)
  theirs = perturbed(CLASSES[task].from_config(config), std=0.1)
  if task == CAUSAL:
    settings = {'do_sample': True, 'temperature': 0.7, 'top_p': 0.9, 'max_new_tokens': 5}
    theirs.generation_config = transformers.GenerationConfig(**settings, eos_token_id=[0, 2])
  folder, run, tuned, back = (tmp_path / n for n in ('theirs', 'run', 'tuned', 'back'))
  theirs.save_pretrained(folder, max_shard_size='20KB')
  tokenizer().save_pretrained(folder)
  assert len([*folder.glob('model-*.safetensors')]) > 1
  assert main(['convert', 'import', str(folder), '--out', str(run)]) == 0
  assert main(['convert', 'export', str(run), '--to', str(back)]) == 0
  same, info = CLASSES[task].from_pretrained(back, output_loading_info=True)
  assert not info['missing_keys']
  assert not info['unexpected_keys']
  for name, tensor in theirs.state_dict().items():
    assert torch.equal(tensor, same.state_dict()[name]), name
  assert fields(same.config) == fields(theirs.config)
  assert_same_files(folder, back)

  (tmp_path / 'text.txt').write_text(TEXT * 20)
  tuning = FINE_TUNING.format(run=run, task=task, data=tmp_path / 'text.txt')
  (tmp_path / 'tuning.gin').write_text(tuning)
  assert main(['train', str(tmp_path / 'tuning.gin'), '--out', str(tuned)]) == 0
  assert main(['convert', 'export', str(tuned), '--to', str(tmp_path / 'tuned_back')]) == 0
  assert_same_files(folder, tmp_path / 'tuned_back')
  trained = CLASSES[task].from_pretrained(tmp_path / 'tuned_back').eval()
  assert fields(trained.config) == fields(theirs.config)
  ids = np.random.default_rng(0).integers(3, 300, (2, 12))
  with torch.no_grad():
    wanted, before = (m(input_ids=torch.tensor(ids)).logits.numpy() for m in (trained, theirs))
  got = np.asarray(t2x.load(tuned).logits(ids))
  np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)
  assert np.abs(wanted - before).max() > 1e-3


def assert_same_files(folder, other):
  """The tokenizer, its chat template and the settings of generation."""
  for path in (folder, other):
    assert len([*path.glob('*.jinja')]) == 1
  one, two = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, other))
  for text in (TEXT, 'Zoë <|end|> 12'):
    assert one(text)['input_ids'] == two(text)['input_ids']
  messages = [{'role': 'user', 'content': 'the cat'}]
  assert one.apply_chat_template(messages) == two.apply_chat_template(messages)
  generation = [path / 'generation_config.json' for path in (folder, other)]
  if generation[0].exists():
    first, second = (json.loads(path.read_text()) for path in generation)
    assert first == second
