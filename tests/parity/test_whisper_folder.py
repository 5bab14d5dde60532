"""A folder of Whisper with its tokenizer, features and prompt, in and out."""

import json

import numpy as np
import pytest
import tokenizers
from tiny_tasks import write_recording

import t2x
from t2x.cli import main
from t2x.decode import Beam, SuppressFirst, SuppressTokens
from t2x.domains.speech import LogMel

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

SPECIAL = (
  '<|endoftext|>',
  '<|startoftranscript|>',
  '<|en|>',
  '<|fr|>',
  '<|transcribe|>',
  '<|notimestamps|>',
)
END, START = 0, 1


def write_tokenizer(folder):
  """Byte-level BPE whose post-processor adds the prompt without a language, as Whisper's does."""
  backend = tokenizers.Tokenizer(tokenizers.models.BPE())
  backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=280,
    special_tokens=list(SPECIAL),
    initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  backend.train_from_iterator(['one two three four'] * 3, trainer)
  start, plain = SPECIAL[START], SPECIAL[5]
  backend.post_processor = tokenizers.processors.TemplateProcessing(
    single=f'{start}:0 {plain}:0 $A:0 {SPECIAL[END]}:0',
    special_tokens=[(start, START), (plain, 5), (SPECIAL[END], END)],
  )
  backend.save(str(folder / 'tokenizer.json'))
  return backend.get_vocab_size()


@pytest.fixture
def folder(tmp_path, perturbed):
  """A folder of a tiny model of one second."""
  path = tmp_path / 'whisper'
  path.mkdir()
  size = write_tokenizer(path)
  torch.manual_seed(0)
  ids = {'pad': END, 'bos': END, 'eos': END, 'decoder_start': START}
  model = transformers.WhisperForConditionalGeneration(
    transformers.WhisperConfig(
      vocab_size=size,
      num_mel_bins=8,
      d_model=16,
      **{f'{side}_{name}': n for side in ('encoder', 'decoder') for name, n in SIZES.items()},
      max_source_positions=50,
      max_target_positions=16,
      begin_suppress_tokens=[7, END],
      **{f'{name}_token_id': i for name, i in ids.items()},
    )
  )
  perturbed(model).save_pretrained(path)
  transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(path)
  generation = {f'{name}_token_id': i for name, i in ids.items()} | {
    'forced_decoder_ids': [[1, 3], [2, 4], [3, 5]],
    'begin_suppress_tokens': [7, END],
    'suppress_tokens': [9],
    'num_beams': 2,
  }
  (path / 'generation_config.json').write_text(json.dumps(generation))
  return path


SIZES = {'layers': 2, 'attention_heads': 2, 'ffn_dim': 24}


def test_a_folder_keeps_its_features_prompt_and_suppressed_tokens(folder, tmp_path, capsys):
  run, back = tmp_path / 'run', tmp_path / 'back'
  assert main(['convert', 'import', str(folder), '--out', str(run)]) == 0
  assert "the prompt has the language 'fr'" in capsys.readouterr().out
  loaded = t2x.load(run)
  task = loaded.task
  assert task.modality.features == LogMel(num_features=8, num_frames=100)
  assert list(task.prompt) == ['<|{language}|>', '<|transcribe|>', '<|notimestamps|>']
  assert dict(task.defaults) == {'language': 'fr'} and task.target_length == 16
  assert isinstance(task.strategy, Beam)
  assert task.strategy.processors == (SuppressFirst((7, END)), SuppressTokens((9,)))

  # The tokens of a file are those of transformers with the same prompt.
  sound = np.round(8000 * np.sin(np.arange(12_000) ** 1.2 / 20))
  write_recording(tmp_path / 'sound.wav', sound, rate=16_000)
  answer = loaded.generate(str(tmp_path / 'sound.wav'), max_new_tokens=6)[0]
  theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
  extract = transformers.WhisperFeatureExtractor.from_pretrained(folder)
  features = extract(sound / 32768, sampling_rate=16_000, return_tensors='pt').input_features
  wanted = transformers.generation.GenerationMixin.generate(
    theirs,
    features,
    decoder_input_ids=torch.tensor([[START, 3, 4, 5]]),
    max_new_tokens=6,
    num_beams=2,
    do_sample=False,
    suppress_tokens=[9],
    begin_suppress_tokens=[7, END],
    forced_decoder_ids=None,
  )[0, 4:].tolist()
  assert answer['tokens'] == wanted

  assert main(['convert', 'export', str(run), '--to', str(back)]) == 0
  again = transformers.WhisperForConditionalGeneration.from_pretrained(back).eval()
  assert again.config.max_source_positions == 50
  ids = torch.tensor([[START, 3, 4, 5, *wanted]])
  with torch.no_grad():
    pair = [m(input_features=features, decoder_input_ids=ids).logits for m in (theirs, again)]
  np.testing.assert_array_equal(*(logits.numpy() for logits in pair))
  other = transformers.WhisperFeatureExtractor.from_pretrained(back)
  np.testing.assert_array_equal(
    other(sound / 32768, sampling_rate=16_000, return_tensors='np').input_features,
    features.numpy(),
  )
  text = transformers.AutoTokenizer.from_pretrained(back)
  assert text.encode('one two') == transformers.AutoTokenizer.from_pretrained(folder).encode(
    'one two'
  )
