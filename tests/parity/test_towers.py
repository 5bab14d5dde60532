"""CLIP and SigLIP through saved folders: logits, and the gradients of their losses, against transformers."""

import io
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
from PIL import Image

from t2x.data import Bytes, ShorterSide, WholeImage, load_hub_tokenizer
from t2x.domains.retrieval import CaptionContrast, Sigmoid, Softmax
from t2x.tasks import ImageModality

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

ROWS, LENGTH, EOS = 5, 9, 39
rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(ROWS, 8, 8, 3)).astype(np.float32)
ENDS = np.array([8, 3, 5, 2, 6])
IDS = rng.integers(2, EOS, (ROWS, LENGTH))
# Other ids than padding after the end token: CLIP's texts are padded with it.
IDS[np.arange(ROWS), ENDS] = EOS
SIDE = {'intermediate_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 2}
TEXT = SIDE | {'vocab_size': 40, 'max_position_embeddings': 12, 'eos_token_id': EOS}
IMAGE = SIDE | {'num_attention_heads': 4, 'image_size': 8, 'patch_size': 4}


def clip():
  return transformers.CLIPModel(
    transformers.CLIPConfig(
      text_config=TEXT | {'hidden_size': 16},
      vision_config=IMAGE | {'hidden_size': 20, 'layer_norm_eps': 1e-3},
      projection_dim=12,
    )
  )


def siglip():
  return transformers.SiglipModel(
    transformers.SiglipConfig(
      text_config=TEXT | {'hidden_size': 12, 'projection_size': 20},
      vision_config=IMAGE | {'hidden_size': 20},
    )
  )


CASES = {'CLIP': (clip, Softmax(), False), 'SigLIP': (siglip, Sigmoid(), True)}


@pytest.mark.parametrize('name', CASES)
def test_logits_per_image_and_gradients_of_the_loss_equal_those_of_transformers(
  name, agree, gradients
):
  make, loss, reads_padding = CASES[name]
  task = CaptionContrast(
    tokenizer=Bytes(),
    modality=ImageModality(shape=(8, 8, 3)),
    target_length=LENGTH,
    reads_padding=reads_padding,
    loss=loss,
  )
  segments = np.arange(LENGTH) <= (LENGTH if reads_padding else ENDS[:, None])
  arrays = {
    'a': IMAGES,
    'b': IDS.astype(np.int32),
    'b_segments': segments.astype(np.int32) * np.ones((ROWS, 1), np.int32),
    'weight': np.ones(ROWS, np.int32),
  }
  batch = jax.tree.map(jnp.asarray, arrays)

  def theirs(model, **settings):
    pixels = torch.tensor(IMAGES.transpose(0, 3, 1, 2))
    return model(input_ids=torch.tensor(IDS), pixel_values=pixels, **settings)

  @jax.jit
  def compiled(model):
    a, b = task.vectors(model, batch)
    return model.factor * a.x @ b.x.T + (0.0 if model.bias is None else model.bias[...])

  def our_loss(model):
    total, weight = task.sums(model, batch, None).metrics['loss']
    return total / weight

  model, mine = agree(
    name,
    make,
    lambda model: theirs(model).logits_per_image,
    lambda model: np.asarray(compiled(model)),
  )
  gradients(
    name,
    model,
    mine,
    lambda model: theirs(model, return_loss=True).loss,
    our_loss,
    vanishing=r'k_proj\.bias$',
    tolerance=2e-5,
  )


WORDS = ['a', 'photo', 'of', 'the', 'cat', 'dog', 'red', 'house', 'tree', 'picture']


def clip_folder(folder):
  """A saved CLIP with its tokenizer, and its processor of images."""
  letters = [chr(i) for i in range(ord('!'), ord('~') + 1)]
  pieces = ['<|startoftext|>', '<|endoftext|>', *letters, *(f'{c}</w>' for c in letters)]
  pieces += ['ca', 'cat</w>', 'do', 'dog</w>']
  tokenizer = transformers.CLIPTokenizer(
    vocab={piece: i for i, piece in enumerate(pieces)},
    merges=[('c', 'a'), ('ca', 't</w>'), ('d', 'o'), ('do', 'g</w>')],
  )
  text = TEXT | {'hidden_size': 16, 'vocab_size': len(pieces), 'max_position_embeddings': 24}
  text |= {'bos_token_id': 0, 'eos_token_id': 1, 'pad_token_id': 1}
  config = transformers.CLIPConfig(text_config=text, vision_config=IMAGE | {'hidden_size': 20})
  processor = transformers.CLIPImageProcessorPil(
    size={'shortest_edge': 10}, crop_size={'height': 8, 'width': 8}
  )
  return transformers.CLIPModel(config), tokenizer, processor


def siglip_folder(folder):
  """A saved SigLIP, whose tokenizer lower-cases texts and removes punctuation."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([' '.join(WORDS), 'the cat, a dog red'] * 20),
    model_writer=model,
    vocab_size=48,
    hard_vocab_limit=False,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
  )
  (folder / 'trained.model').write_bytes(model.getvalue())
  tokenizer = transformers.SiglipTokenizer(
    str(folder / 'trained.model'), eos_token='</s>', pad_token='</s>', unk_token='<unk>'
  )
  text = TEXT | {'hidden_size': 20, 'vocab_size': 48, 'max_position_embeddings': 24}
  config = transformers.SiglipConfig(text_config=text, vision_config=IMAGE | {'hidden_size': 20})
  processor = transformers.SiglipImageProcessorPil(size={'height': 8, 'width': 8})
  return transformers.SiglipModel(config), tokenizer, processor


FOLDERS = {
  'CLIP': (
    clip_folder,
    {
      'mean': (0.48145466, 0.4578275, 0.40821073),
      'std': (0.26862954, 0.26130258, 0.27577711),
      'fit': ShorterSide(side=10),
    },
  ),
  'SigLIP': (siglip_folder, {'fit': WholeImage()}),
}


@pytest.mark.parametrize('name', FOLDERS)
def test_zero_shot_logits_of_files_and_prompts_equal_those_of_transformers(
  name, compared, perturbed, imported_from, tmp_path
):
  """From pixels of two photographs of other sizes and from names of classes, with all preprocessing."""
  make, settings = FOLDERS[name]
  _, loss, reads_padding = CASES[name]
  their, tokenizer, processor = make(tmp_path)
  their, folder = perturbed(their, 0.1), tmp_path / 'folder'
  for part in (their, tokenizer, processor):
    part.save_pretrained(folder)
  paths = []
  for number, shape in enumerate(((21, 34, 3), (15, 12, 3))):
    pixels = rng.integers(0, 256, shape, np.uint8)
    paths.append(str(tmp_path / f'{number}.png'))
    Image.fromarray(pixels).save(paths[-1])

  classes, templates = ('Cat', 'dog', 'red house'), ('a photo of a {}.', 'the {}')
  prompts = [template.replace('{}', c) for c in classes for template in templates]
  inputs = tokenizer(
    prompts, padding='max_length', max_length=24, truncation=True, return_tensors='pt'
  )
  pictures = processor([Image.open(path) for path in paths], return_tensors='pt')
  with torch.no_grad():
    out = their(input_ids=inputs['input_ids'], pixel_values=pictures['pixel_values'])
    texts = out.text_embeds.reshape(3, 2, -1).mean(dim=1)
    products = out.image_embeds @ torch.nn.functional.normalize(texts, dim=-1).T
    wanted = products * their.logit_scale.exp() + getattr(their, 'logit_bias', 0.0)

  mine = imported_from(folder)
  task = CaptionContrast(
    modality=ImageModality(shape=(8, 8, 3), **settings),
    target_length=24,
    reads_padding=reads_padding,
    loss=loss,
    classes=classes,
    templates=templates,
  ).bound(load_hub_tokenizer(folder))
  sources = [task.modality.read(path) for path in map(Path, paths)]
  compared(name, 'transformers', task.class_logits(mine, sources), wanted.numpy())
  answers = task.generate(mine, paths, strategy=None, max_new_tokens=1, num_return=3)
  best = wanted.argmax(dim=1).tolist()
  assert [answer[0]['text'] for answer in answers] == [classes[i] for i in best]
  chances = wanted.softmax(dim=1) if name == 'CLIP' else wanted.sigmoid()
  assert np.exp(answers[0][0]['score']) == pytest.approx(float(chances[0, best[0]]), rel=1e-4)
