"""A decoder of 0.3M parameters, for plans."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = tuple(
  str(ROOT / name) for name in ('configs/models/gpt2_small.gin', 'experiments/speed/gpt2_bf16.gin')
)
SETTINGS = (
  'd_model=64',
  'num_layers=4',
  'MultiHeadAttention.num_heads=4',
  'MultiHeadAttention.kernel=@Blockwise()',
  'Blockwise.q_block=32',
  'Blockwise.k_block=32',
  'MLP.hidden_dim=256',
  'TokenEmbedding.vocab_size=512',
  'CausalLM.length=128',
  'Trainer.batch_size=16',
)
# A model whose time is estimated.
LARGE = (*SETTINGS, 'd_model=1024', 'MLP.hidden_dim=4096')
FLOAT32 = "Trainer.compute_dtype='float32'"


def mesh_file(name: str) -> str:
  """Returns the path of a file of configs/meshes."""
  return str(ROOT / 'configs' / 'meshes' / f'{name}.gin')
