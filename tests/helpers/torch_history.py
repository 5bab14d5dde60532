"""`history_model` for transformers: the same table of logits, looked up by the same hash."""

import pytest

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")


class Config(transformers.PreTrainedConfig):
  """The minimal config that `generate` requires."""

  model_type = 'history'


class TorchHistory(transformers.PreTrainedModel, transformers.GenerationMixin):
  """Logits after each history = table[hash(history)], without padding."""

  config_class = Config
  main_input_name = 'input_ids'

  def __init__(self, table):
    super().__init__(Config())
    self.table = torch.nn.Parameter(torch.tensor(table))

  def forward(self, input_ids, attention_mask=None, **kwargs):
    """Returns logits for every position of rows padded on the left."""
    known = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    slots = known.cumsum(-1) - 1
    hashed = ((input_ids + 1) * (slots + 2) ** 2 * known).cumsum(-1)
    return transformers.modeling_outputs.CausalLMOutput(logits=self.table[hashed % len(self.table)])
