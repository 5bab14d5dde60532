"""Model folders with small tokenizers in the files of each family, without weights."""

import functools
import io
import json
import textwrap
from pathlib import Path

import sentencepiece

SENTENCES = (
  'Hello world, this is unbelievable! It was the best of times in 1859, and the worst of times.',
  'Die Straße führt über die Brücke; am Ende wohnt Frau Müller, die Bücher übersetzt.',
  "The naïve café-owner's résumé isn't here: “quoted” (and bracketed) — £100.",
  'Быстрая лиса прыгает через ленивую собаку. 快速的狐狸跳过懒狗。',
)


@functools.cache
def lines():
  code = Path(textwrap.__file__).read_text(encoding='utf-8').splitlines()
  return [*filter(None, code), *SENTENCES * 20]


def bert(folder):
  import tokenizers

  model = tokenizers.BertWordPieceTokenizer(lowercase=True)
  model.train_from_iterator(lines(), vocab_size=500, min_frequency=1, show_progress=False)
  model.save_model(str(folder))
  return {'model_type': 'bert'}


def gpt1(folder):
  import tokenizers

  model = tokenizers.CharBPETokenizer(lowercase=True, suffix='</w>')
  model.train_from_iterator(lines(), vocab_size=500, min_frequency=1, show_progress=False)
  model.save_model(str(folder))
  return {'model_type': 'openai-gpt'}


def gpt2(folder):
  _byte_level(folder, ['<|endoftext|>'])
  return {'model_type': 'gpt2', 'bos_token_id': 0, 'eos_token_id': 0}


def bart(folder):
  _byte_level(folder, ['<s>', '<pad>', '</s>', '<unk>', '<mask>'])
  mask = {'__type': 'AddedToken', 'content': '<mask>', 'lstrip': True, 'normalized': False}
  (folder / 'tokenizer_config.json').write_text(json.dumps({'mask_token': mask}))
  return {'model_type': 'bart', 'decoder_start_token_id': 2}


def _byte_level(folder, special):
  import tokenizers

  model = tokenizers.ByteLevelBPETokenizer()
  model.train_from_iterator(lines(), vocab_size=500, special_tokens=special, show_progress=False)
  model.save_model(str(folder))


def t5(folder):
  model = _unigram(lines(), pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece='<pad>')
  (folder / 'spiece.model').write_bytes(model)
  return {'model_type': 't5', 'decoder_start_token_id': 0, 'pad_token_id': 0, 'eos_token_id': 1}


def albert(folder):
  special = ['[CLS]', '[SEP]', '[MASK]']
  small = [line.lower() for line in lines()]
  ids = {'pad_id': 0, 'unk_id': 1, 'bos_id': -1, 'eos_id': -1}
  model = _unigram(small, pad_piece='<pad>', control_symbols=special, **ids)
  (folder / 'spiece.model').write_bytes(model)
  return {'model_type': 'albert'}


def marian(folder):
  source, target = _unigram(lines(), size=300), _unigram(lines()[-200:], size=250)
  pieces = ['</s>', '<unk>', '>>de<<']
  for name, model in {'source': source, 'target': target}.items():
    (folder / f'{name}.spm').write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces += [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]
  # Some pieces of the models are not in the vocabulary.
  vocab = {piece: i for i, piece in enumerate([*dict.fromkeys(pieces[:-5]), '<pad>'])}
  (folder / 'vocab.json').write_text(json.dumps(vocab))
  pad = vocab['<pad>']
  return {'model_type': 'marian', 'decoder_start_token_id': pad, 'pad_token_id': pad}


def _unigram(texts, size=400, **settings):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_writer=model,
    vocab_size=size,
    character_coverage=0.99,
    num_threads=1,
    minloglevel=2,
    hard_vocab_limit=False,
    **settings,
  )
  return model.getvalue()


MAKERS = {maker.__name__: maker for maker in (bert, gpt1, gpt2, bart, t5, albert, marian)}


def make(folder, family):
  """Writes the tokenizer's files and config.json of a family."""
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps(MAKERS[family](folder)))
  return folder
