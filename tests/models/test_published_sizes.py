"""Each model file in configs/models has exactly the published number of parameters.

Where no exact number is published (the original Transformer, GPT-3) the sizes of the paper are put
into the closed form here, apart from the model code.
"""

import math
import re
from pathlib import Path

import jax
import pytest

from t2x.base.step import in_step
from t2x.experiments import read_config
from t2x.layers import Dense
from t2x.train.logs.flops import _multiply_adds, with_kernels
from t2x.train.params import Blueprint
from tests.golden import parameters

MODELS = Path(__file__).parents[2] / 'configs' / 'models'

PUBLISHED = {
  'bart_base': 139_420_416,
  'bart_large': 406_291_456,
  'bert_base': 109_482_240,
  'bert_large': 335_141_888,
  'clip_b32': 151_277_313,
  'convnext_t': 28_589_128,
  'deepseek_v2_lite': 15_706_484_224,
  'deit_ti16': 5_910_800,
  # 41,524,768 in transformers, whose frozen norms have buffers.
  'detr_r50': 41_631_008,
  'dinov3_7b16': 6_716_030_976,
  'dinov3_s16': 21_596_160,
  'gmlp_s16': 19_422_656,
  'gpt2_large': 774_030_080,
  'gpt2_medium': 354_823_168,
  'gpt2_small': 124_439_808,
  'gpt2_xl': 1_557_611_200,
  'image_gpt_l': 1_362_914_304,
  'image_gpt_m': 455_489_536,
  'image_gpt_s': 76_682_240,
  'llama2_7b': 6_738_415_616,
  'llama3_70b': 70_553_706_496,
  'llama3_8b': 8_030_261_248,
  'minilm_l6': 22_713_216,
  'mixtral_8x7b': 46_702_792_704,
  'mixer_s16': 18_528_264,
  'resnet_18': 11_689_512,
  'resnet_50': 25_557_032,
  'se_resnet_50': 28_088_024,
  'segformer_b0': 3_752_694,
  'siglip_b16': 203_155_970,
  'swin_b': 87_768_224,
  'swin_s': 49_606_258,
  'swin_t': 28_288_354,
  'swin_v2_t': 28_347_154,
  't5_v1_1_base': 247_577_856,
  't5_v1_1_large': 783_150_080,
  't5_v1_1_small': 76_961_152,
  't5_v1_1_xl': 2_849_757_184,
  't5_v1_1_xxl': 11_135_332_352,
  'timesformer_b16': 121_566_352,
  'vilt_b32': 117_588_537,
  'vit_b16': 86_567_656,
  'vit_b32': 88_224_232,
  'vit_l16': 304_326_632,
  'vit_s16': 22_050_664,
  'vivit_b16x2': 88_954_000,
  # Published: 117.3 and 115.1 million.
  'vivit_b16x2_factorised_attention': 117_319_312,
  'vivit_b16x2_factorised_encoder': 115_059_856,
  # Without the sinusoids of the encoder, 1,500 x d_model, which transformers counts.
  'whisper_base': 71_825_920,
  'whisper_large': 1_541_384_960,
  'whisper_large_v3': 1_541_570_560,
  'whisper_medium': 762_321_920,
  'whisper_small': 240_582_912,
  'whisper_tiny': 37_184_640,
  # Without the 19,200 positions of detection tokens that transformers adds to theirs.
  'yolos_ti': 6_479_136,
}


def gpt(layers, d, vocab, length):
  """Weights 12 d^2, biases and norms 13 d a layer; embeddings; the last norm."""
  return layers * (12 * d * d + 13 * d) + (vocab + length) * d + 2 * d


def transformer(layers, d, hidden, vocab):
  """Attention without biases, feed-forward with them, norms after each sublayer; one embedding."""
  feed_forward = 2 * d * hidden + hidden + d
  encoder = 4 * d * d + feed_forward + 2 * 2 * d
  decoder = 8 * d * d + feed_forward + 3 * 2 * d
  return layers * (encoder + decoder) + vocab * d


DERIVED = {
  'gpt3_175b': gpt(96, 12288, 50257, 2048),
  'transformer_base': transformer(6, 512, 2048, 37000),
  'transformer_big': transformer(6, 1024, 4096, 37000),
}


@pytest.mark.parametrize(('name', 'expected'), (PUBLISHED | DERIVED).items())
def test_parameter_count(name, expected):
  """Of the stored list, which tests/test_configs.py compares with the config."""
  lines = parameters.stored(MODELS / f'{name}.gin').read_text().splitlines()
  shapes = [re.fullmatch(r'\S+ ([\d x]*) \(.*\)', line)[1] for line in lines]
  sizes = (map(int, shape.split(' x ') if shape else ()) for shape in shapes)
  assert sum(map(math.prod, sizes)) == expected


@pytest.mark.parametrize(
  ('name', 'weights'),
  [
    ('resnet_18', 'ResNet18_Weights'),
    ('resnet_50', 'ResNet50_Weights'),
    ('convnext_t', 'ConvNeXt_Tiny_Weights'),
    ('swin_t', 'Swin_T_Weights'),
  ],
)
def test_multiply_adds_per_image_are_those_that_torchvision_lists(name, weights):
  reason = "the extra 'references' is not installed"
  listed = getattr(pytest.importorskip('torchvision', reason=reason).models, weights)
  counted = multiply_adds_of_an_image(name)
  assert round(counted / 1e9, 3) == listed.IMAGENET1K_V1.meta['_ops']


@pytest.mark.parametrize(
  ('name', 'theirs'),
  [('dinov3_s16', 'vit_small_patch16_dinov3'), ('dinov3_7b16', 'vit_7b_patch16_dinov3')],
)
def test_multiply_adds_of_dinov3_are_those_that_torch_counts_in_timm(name, theirs):
  timm = pytest.importorskip('timm', reason="the extra 'references' is not installed")
  torch = pytest.importorskip('torch')
  from torch.utils.flop_counter import FlopCounterMode

  with torch.device('meta'):
    model, image = timm.create_model(theirs), torch.empty(1, 3, 224, 224)
  with (
    torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    FlopCounterMode(display=False) as counter,
  ):
    model(image)
  assert multiply_adds_of_an_image(name) == counter.get_total_flops() // 2


def multiply_adds_of_an_image(name):
  """Those of one image of 224 x 224 pixels."""
  model = read_config([MODELS / f'{name}.gin']).build().shapes()
  model = with_kernels(model, lambda kernel: Dense())
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), 'float32')
  with in_step(target='tpu'):
    traced = jax.make_jaxpr(lambda model, x: model(x).x)(model, image)
  return _multiply_adds(traced.jaxpr).full


def test_active_parameters_are_those_of_the_chosen_experts():
  """Published: 12.9 billion of Mixtral; 2.4 billion of DeepSeek-V2-Lite, whose table of tokens does not count."""
  active = {
    name: Blueprint(read_config([MODELS / f'{name}.gin']).build().shapes()).active()
    for name in ('mixtral_8x7b', 'deepseek_v2_lite')
  }
  assert active['mixtral_8x7b'] == PUBLISHED['mixtral_8x7b'] - 32 * 6 * 3 * 4096 * 14336
  assert active['deepseek_v2_lite'] == PUBLISHED['deepseek_v2_lite'] - 26 * 58 * 3 * 2048 * 1408
  assert round(active['mixtral_8x7b'] / 1e9, 1) == 12.9
  assert round((active['deepseek_v2_lite'] - 102400 * 2048) / 1e9, 2) == 2.45


def test_every_published_size_is_tested():
  files = {path.stem for path in MODELS.glob('*.gin') if not path.stem.startswith('small_')}
  assert files == PUBLISHED.keys() | DERIVED.keys()


def test_gpt3_formula_holds_for_gpt2():
  assert gpt(12, 768, 50257, 1024) == PUBLISHED['gpt2_small']


def test_small_switch_has_experts_in_every_other_layer():
  infos = Blueprint(read_config([MODELS / 'small_switch.gin']).build().shapes()).infos
  dense = infos['body.stack.blocks.0.feed_forward.up.kernel']
  experts = infos['body.stack.blocks.1.feed_forward.expert.up.kernel']
  assert (dense.layers, experts.layers) == (((0,), (2,), (4,)), ((1,), (3,), (5,)))
  assert experts.shape == (3, 8, 256, 1024)
  assert experts.all_axes == ('layers', 'experts', 'embed', 'mlp')
