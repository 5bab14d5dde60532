"""Model folders in practice: other heads, old names, unsupported fields."""

import json

import jax
import numpy as np
import pytest
import tiny_models
from tiny_models import BERT, SIDES, build, shapes

from t2x.base.errors import UserError
from t2x.base.external_files import Fields
from t2x.interop import FAMILIES, HFModel, export
from t2x.interop.rope import Rope
from t2x.interop.safetensors import read_tensors, write_tensors
from t2x.layers.arrays import named_leaves

VIT = {
  'hidden_size': 8,
  'num_hidden_layers': 1,
  'num_attention_heads': 2,
  'intermediate_size': 12,
  'image_size': [8, 4],
  'patch_size': 2,
}


def read(path):
  source = HFModel(path)
  return source.read(shapes(source.gin))


def gin_of(model_type, architecture, **fields):
  family = FAMILIES[model_type]
  return family.gin(family.read(fields | {'architectures': [architecture]}, 'the test'))


@pytest.fixture
def folder(tmp_path):
  """`folder(model_type, architecture, **fields)`: an exported folder, and its t2x model."""

  def make(model_type, architecture, extra=None, **fields):
    rng = np.random.default_rng(0)
    abstract = shapes(gin_of(model_type, architecture, **fields))
    model = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), abstract)
    path = tmp_path / 'theirs'
    export(model, build, path, dict(named_leaves(model)).__getitem__, extra=extra)
    return path, model

  return make


def change_config(path, **fields):
  file = path / 'config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def rename(path, change):
  """Renames tensors to `change(name)`, and removes those with an empty name."""
  tensors = {name: np.array(tensor) for name, tensor in read_tensors(path).items()}
  tensors = {new: tensor for name, tensor in tensors.items() if (new := change(name))}
  specs = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
  write_tensors(path, specs, tensors.__getitem__)


def assert_equal(model, other):
  jax.tree.map(np.testing.assert_array_equal, model, other)


def test_older_spellings_are_read(folder):
  path, model = folder('bert', 'BertForPreTraining', **BERT)

  def older(name):
    if 'LayerNorm' in name:
      return name.replace('weight', 'gamma').replace('bias', 'beta')
    return name.replace('cls.predictions.bias', 'cls.predictions.decoder.bias')

  rename(path, older)
  assert 'bert.embeddings.LayerNorm.gamma' in read_tensors(path)
  assert_equal(read(path), model)


def test_heads_that_the_architecture_does_not_name_are_skipped_and_reported(folder):
  path, model = folder('bert', 'BertForPreTraining', **BERT)
  change_config(path, architectures=['BertForMaskedLM'])
  source = HFModel(path)
  _, left = source.arrays(shapes(source.gin))
  assert sorted(left) == [
    'bert.pooler.dense.bias',
    'bert.pooler.dense.weight',
    'cls.seq_relationship.bias',
    'cls.seq_relationship.weight',
  ]
  masked = read(path)
  assert_equal(masked.body, model.body)
  assert_equal(masked.head, model.head.language_head)


def test_a_folder_of_the_bare_model_has_bare_names(folder):
  path, model = folder('bert', 'BertModel', **BERT)
  assert 'pooler.dense.weight' in read_tensors(path)
  assert_equal(read(path), model)


def test_a_missing_pooler_is_named(folder):
  path, _ = folder('bert', 'BertModel', **BERT)
  rename(path, lambda name: None if 'pooler' in name else name)
  with pytest.raises(UserError, match=r'2 tensors are missing: bert.pooler.dense.weight'):
    read(path)


def test_a_config_with_other_shapes_is_an_error(folder):
  path, _ = folder('bert', 'BertForMaskedLM', **BERT)
  change_config(path, intermediate_size=16)
  with pytest.raises(
    UserError, match=r'intermediate.dense.weight has shape \(12, 8\), .* \(16, 8\)'
  ):
    read(path)


def test_names_of_classes_outlive_an_export_that_has_as_many(folder):
  names = {'id2label': {'0': 'cat', '1': 'dog', '2': 'eel'}, 'other': 1}
  path, _ = folder('vit', 'ViTForImageClassification', names, **VIT, num_labels=3)
  config = json.loads((path / 'config.json').read_text())
  assert config['id2label'] == names['id2label']
  path, _ = folder('vit', 'ViTForImageClassification', names, **VIT, num_labels=4)
  config = json.loads((path / 'config.json').read_text())
  assert 'id2label' not in config
  assert (config['num_labels'], config['other']) == (4, 1)


DECODER = {'hidden_size': 8, 'vocab_size': 20, 'intermediate_size': 12}
T5 = {'d_model': 8, 'd_kv': 2, 'd_ff': 12, 'num_layers': 1, 'num_heads': 2, 'vocab_size': 20}
NEOX = DECODER | {'num_attention_heads': 2, 'num_hidden_layers': 2, 'rotary_pct': 0.5}
WRITTEN = [
  ('t5', 'T5ForConditionalGeneration', T5 | {'feed_forward_proj': 'gated-silu'}),
  ('t5', 'T5ForConditionalGeneration', T5 | {'tie_word_embeddings': False}),
  ('bart', 'BartModel', SIDES | {'vocab_size': 20, 'max_position_embeddings': 6}),
  ('marian', 'MarianModel', SIDES | {'vocab_size': 20, 'scale_embedding': True}),
  ('fsmt', 'FSMTForConditionalGeneration', SIDES | {'src_vocab_size': 20, 'tgt_vocab_size': 10}),
  (
    'gpt_neo',
    'GPTNeoForCausalLM',
    DECODER
    | {'num_heads': 2, 'num_layers': 3, 'attention_types': [[['local', 'local', 'global'], 1]]},
  ),
  (
    'opt',
    'OPTForCausalLM',
    {'hidden_size': 8, 'ffn_dim': 12, 'vocab_size': 20, 'tie_word_embeddings': False}
    | {'num_attention_heads': 2, 'num_hidden_layers': 2, 'max_position_embeddings': 6},
  ),
  ('gpt_neox', 'GPTNeoXForCausalLM', NEOX | {'rotary_emb_base': 500.0}),
  (
    'gpt_neox',
    'GPTNeoXForCausalLM',
    NEOX
    | {'use_parallel_residual': False, 'attention_bias': False, 'tie_word_embeddings': True}
    | {'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}},
  ),
  (
    'llama',
    'LlamaForCausalLM',
    DECODER
    | {'num_attention_heads': 2, 'num_hidden_layers': 1}
    | {'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}},
  ),
]


@pytest.mark.parametrize(('model_type', 'architecture', 'fields'), WRITTEN)
def test_written_files_can_be_read(folder, model_type, architecture, fields):
  path, model = folder(model_type, architecture, **fields)
  config = json.loads((path / 'config.json').read_text())
  assert (config['model_type'], config['architectures']) == (model_type, [architecture])
  assert {name: config[name] for name in fields} == fields
  assert_equal(read(path), model)


REFUSED = [
  ('bert', {'position_embedding_type': 'relative_key'}, "position_embedding_type = 'relative_key'"),
  ('bert', {'is_decoder': True}, 'is_decoder = True'),
  ('bert', {'hidden_act': 'mish'}, "hidden_act = 'mish'"),
  ('bert', {'tie_word_embeddings': False}, 'tie_word_embeddings = False'),
  ('bert', {'architectures': ['BertForNextWord']}, "architecture = 'BertForNextWord'"),
  ('albert', {'inner_group_num': 2}, 'inner_group_num = 2'),
  ('albert', {'num_hidden_layers': 12, 'num_hidden_groups': 5}, 'num_hidden_groups = 5'),
  ('xlm', {'asm': True}, 'asm = True'),
  ('xlm', {'is_encoder': False}, 'is_encoder = False'),
  ('vit', {'patch_size': [16, 8]}, 'patch_size = 16 x 8'),
  ('vit', {'image_size': 100}, 'image_size = 100 x 100'),
  ('swin', {'depths': [2, 2, 6]}, '3 depths, 4 num_heads'),
  ('swin', {'depths': [2] * 7, 'num_heads': [3] * 7}, '7 stages'),
  ('swin', {'depths': [2, 2, 5, 2]}, 'a depth of 5'),
  ('swin', {'image_size': 112}, 'image_size = 112'),
  ('resnet', {'hidden_sizes': [256, 512, 1024, 1024]}, 'hidden_sizes = [256, 512, 1024, 1024]'),
  ('resnet', {'embedding_size': 32}, 'the first must be 128'),
  ('resnet', {'depths': [3, 4, 1, 3]}, 'depths = [3, 4, 1, 3]'),
  ('resnet', {'downsample_in_first_stage': True}, 'downsample_in_first_stage = True'),
  ('convnext', {'num_stages': 3}, 'num_stages = 3'),
  ('convnext', {'layer_scale_init_value': 0.0}, 'layer_scale_init_value = 0.0'),
  ('bart', {'encoder_layerdrop': 0.1}, 'encoder_layerdrop = 0.1'),
  ('bart', {'normalize_before': True}, 'normalize_before = True'),
  ('marian', {'tie_word_embeddings': False}, 'tie_word_embeddings = False'),
  ('marian', {'decoder_vocab_size': 9}, 'decoder_vocab_size = 9'),
  ('fsmt', {'tie_word_embeddings': True, 'tgt_vocab_size': 9}, 'and 9 (tgt_vocab_size) tokens'),
  ('t5', {'feed_forward_proj': 'gated-mish'}, "feed_forward_proj = 'gated-mish'"),
  ('t5', {'feed_forward_proj': 'twice-relu'}, "feed_forward_proj = 'twice-relu'"),
  ('t5', {'tie_word_embeddings': False, 'scale_decoder_outputs': True}, 'scale_decoder_outputs'),
  ('gpt2', {'scale_attn_by_inverse_layer_idx': True}, 'scale_attn_by_inverse_layer_idx = True'),
  ('openai-gpt', {'afn': 'gelu_new'}, "afn = 'gelu_new'"),
  ('gpt_neo', {'num_layers': 5}, 'num_layers = 5'),
  ('gpt_neo', {'attention_types': [[['near'], 24]]}, "attention_types = [[['near'], 24]]"),
  ('llama', {'rope_scaling': {'type': 'yarn'}}, "'yarn'"),
  ('llama', {'rope_scaling': {'type': 'linear'}}, "no field 'factor'"),
  (
    'llama',
    {'rope_scaling': {'type': 'linear', 'factor': 2.0, 'slope': 3}},
    'rope_scaling: slope = 3',
  ),
  ('mixtral', {'sliding_window': 4096}, 'sliding_window = 4096'),
  ('mixtral', {'router_jitter_noise': 0.1}, 'router_jitter_noise = 0.1'),
  ('qwen3_moe', {'mlp_only_layers': [0]}, 'mlp_only_layers = [0]'),
  ('qwen3_moe', {'decoder_sparse_step': 2}, 'decoder_sparse_step = 2'),
  ('qwen3_moe', {'num_experts': 8, 'num_local_experts': 4}, 'contradicts num_local_experts = 4'),
  ('roberta', {'max_position_embeddings': 2}, 'has no position after pad_token_id = 1'),
  ('switch_transformers', {'num_sparse_encoder_layers': 1}, 'num_sparse_encoder_layers = 1'),
  ('switch_transformers', {'decoder_sparse_step': 2}, 'decoder_sparse_step = 2'),
  ('switch_transformers', {'router_bias': True}, 'router_bias = True'),
  ('opt', {'do_layer_norm_before': False}, 'do_layer_norm_before = False'),
  (
    'opt',
    {'word_embed_proj_dim': 512, 'hidden_size': 1024},
    'word_embed_proj_dim = 512 is not supported: must be hidden_size = 1024',
  ),
  ('gpt_neox', {'hidden_dropout': 0.1}, 'hidden_dropout = 0.1'),
  ('gpt_neo', {'attention_layers': ['local'] * 24}, "attention_layers = ['local'"),
  ('t5', {'dense_act_fn': 'silu'}, "dense_act_fn = 'silu'"),
  ('t5', {'is_gated_act': True}, 'is_gated_act = True'),
  ('marian', {'static_position_embeddings': False}, 'static_position_embeddings = False'),
  ('bart', {'num_hidden_layers': 3, 'encoder_layers': 4}, 'num_hidden_layers = 3'),
  (
    'qwen2',
    {'layer_types': ['full_attention']},
    "layer_types = ['full_attention'] is not supported",
  ),
  ('qwen2', {'layer_types': ['sliding_attention'] * 32}, 'because no window is in use'),
  ('mistral', {'layer_types': ['full_attention'] * 32}, 'layer_types'),
  ('gemma2', {'use_bidirectional_attention': True}, 'use_bidirectional_attention = True'),
  ('gemma2', {'tie_word_embeddings': False}, 'tie_word_embeddings = False'),
  ('gemma3_text', {'rope_parameters': {'rope_type': 'default'}}, "rope_type = 'default'"),
  (
    'gemma3_text',
    {'rope_parameters': {'sliding_attention': {'rope_type': 'linear', 'factor': 2.0}}},
    "rope_parameters.sliding_attention.rope_type = 'linear' is not supported",
  ),
  ('gemma3_text', {'sliding_window_pattern': 27}, 'must be at most num_hidden_layers = 26'),
  (
    'gemma3_text',
    {'layer_types': ['sliding_attention'] * 26},
    'must be full_attention for some layer',
  ),
  ('phi', {'qk_layernorm': True}, 'qk_layernorm = True'),
  ('phi3', {'rope_scaling': {'type': 'longrope'}}, "'longrope'"),
  ('smollm3', {'no_rope_layers': [1, 0]}, 'a list of num_hidden_layers = 36 numbers'),
  ('smollm3', {'use_sliding_window': True}, 'use_sliding_window = True'),
  ('modernbert', {'attention_dropout': 0.1}, 'attention_dropout = 0.1'),
  ('modernbert', {'layer_types': ['sliding_attention'] * 22}, 'full_attention first'),
  ('dinov2', {'drop_path_rate': 0.1}, 'drop_path_rate = 0.1'),
  ('dinov2', {'architectures': ['Dinov2ForImageClassification']}, "'Dinov2ForImageClassification'"),
  ('dinov3_vit', {'patch_size': [16, 8]}, 'patch_size = [16, 8]'),
  ('mamba2', {'num_heads': 100}, 'num_heads = 100 times head_dim = 64'),
  ('mamba2', {'n_groups': 3}, 'n_groups = 3'),
  ('mamba2', {'time_step_limit': [0.0, 1.0]}, 'time_step_limit = [0.0, 1.0]'),
  ('bort', {}, "model_type = 'bort' is not supported; must be one of: albert, "),
]


@pytest.mark.parametrize(('model_type', 'fields', 'told'), REFUSED)
def test_settings_of_no_part_are_refused(tmp_path, model_type, fields, told):
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': model_type} | fields))
  with pytest.raises(UserError) as caught:
    HFModel(tmp_path)
  assert told in str(caught.value)
  assert 'config.json' in str(caught.value)


def test_a_missing_config_and_invalid_json_are_errors(tmp_path):
  with pytest.raises(UserError, match=r'must contain the config\.json of the model'):
    HFModel(tmp_path)
  (tmp_path / 'config.json').write_text('{')
  with pytest.raises(UserError, match='is not valid JSON'):
    HFModel(tmp_path)
  with pytest.raises(UserError, match='does not exist'):
    HFModel(tmp_path / 'nowhere')


def test_a_model_of_other_parts_is_refused_with_what_differs(tmp_path):
  model = shapes(gin_of('bert', 'BertModel', **BERT) + 'MLP.use_bias = False\n')
  with pytest.raises(UserError) as caught:
    export(model, build, tmp_path / 'out', dict(named_leaves(model)).__getitem__)
  assert 'differs from the closest family, bert:' in str(caught.value)
  assert 'feed_forward.down.bias: expected (2, 8), got None' in str(caught.value)


# Fields of other models, or fields that enable features t2x lacks.
UNREAD = {
  'sliding_window': 128,
  'attn_logit_softcapping': 50.0,
  'quantization_config': {'bits': 4},
  'per_layer_config': {'0': {'num_attention_heads': 2}},
  'a\nb': None,
}


@pytest.mark.parametrize(
  ('model_type', 'name'),
  [(kind, name) for name in UNREAD for kind in FAMILIES if name not in FAMILIES[kind].declared],
)
def test_a_field_that_nobody_reads_is_refused_with_its_value(tmp_path, model_type, name):
  config = {'model_type': model_type, name: UNREAD[name]}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError) as caught:
    HFModel(tmp_path)
  message = str(caught.value)
  assert message.startswith(f'{tmp_path}/config.json: ')
  assert message.isprintable()
  assert (
    f'{name if name.isprintable() else repr(name)} = {UNREAD[name]!r} is not supported' in message
  )
  assert 'remove it from the file' in message


@pytest.mark.parametrize(
  'model_type', ['gpt2', 'gpt_neo', 'gpt_neox', 'llama', 'openai-gpt', 'opt', 't5']
)
def test_a_bare_model_has_a_head_without_parameters(model_type):
  config = tiny_models.CONFIGS[model_type] | {'tie_word_embeddings': False}
  first, *_, bare = FAMILIES[model_type].architectures
  heads = [shapes(gin_of(model_type, name, **config)).head for name in (first, bare)]
  assert [type(head).__name__ for head in heads] == ['LMHead', 'TiedHead']


def test_a_padding_id_that_contradicts_the_positions_is_refused(tmp_path):
  sizes = BERT | {'max_position_embeddings': 9}
  model = shapes(gin_of('roberta', 'RobertaForMaskedLM', **sizes))
  with pytest.raises(UserError, match=r'start at the padding id plus one, 2 in the model, .* is 0'):
    export(model, build, tmp_path / 'out', {}.__getitem__, extra={'pad_token_id': 0})


@pytest.mark.parametrize('old', [{'rope_type': 'linear', 'factor': 4.0}, {}, None])
def test_rope_scaling_wins_over_rope_parameters_as_in_transformers(old):
  transformers = pytest.importorskip('transformers')
  new = {'rope_type': 'linear', 'factor': 2.0, 'rope_theta': 500.0}
  values = {'rope_scaling': old, 'rope_parameters': new, 'rope_theta': 300.0}
  rope = Rope('rope_theta')
  derived = rope.derive(Fields(values, rope.declared, 'config.json'))
  expected = transformers.LlamaConfig(**values).rope_parameters
  assert derived['rope_theta'] == expected['rope_theta']
  assert (derived['rope_type'], derived['factor']) == (expected['rope_type'], expected['factor'])
