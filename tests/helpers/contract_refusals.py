"""The contracts that parts of contract_parts.py refuse, because they do not support what it calls them with."""

# The contracts that need a cache.
DECODING = (
  'decoding equals the forward pass',
  'prompts of different lengths decode',
  'copies follow their parents',
)
# The contracts for which a part refuses the call, with a UserError.
REFUSED = {
  # Their keys are mixtures of all tokens of a row, later ones and those of other segments included.
  **dict.fromkeys(
    ('Linformer', 'Nystrom attention', 'ProbSparse attention'),
    (
      'outputs ignore later tokens',
      'packed rows equal separate rows',
      *DECODING,
    ),
  ),
  # Its blocks of tokens start at the start of a row.
  'memory-compressed attention': ('packed rows equal separate rows',),
  # It has no cache: language models of long rows use windows without global tokens.
  'global and local attention': DECODING,
  # Their biases depend on the distances of cached tokens, or on positions in the row.
  'AFT-local': DECODING,
  'AFT-conv': DECODING,
  'AFT-full': ('packed rows equal separate rows', *DECODING),
  # They mix grids, or rows of one length, which are neither packed nor padded, and never a part of one.
  **dict.fromkeys(
    (
      'windows of a grid',
      'axes of a grid',
      'convolutions of a grid',
      'attention to squares of a grid',
      'MLP of neighbours in a grid',
      'matrix over tokens',
    ),
    (
      'outputs ignore later tokens',
      'padding is not read',
      'packed rows equal separate rows',
      *DECODING,
    ),
  ),
  # Its positions are those of one grid per row.
  'rotations by row and column': (
    'padding is not read',
    'packed rows equal separate rows',
    *DECODING,
  ),
  'offsets of rows and columns': (
    'padding is not read',
    'packed rows equal separate rows',
    *DECODING,
  ),
  # Rows have one length. Under Causal() it does not read later tokens.
  'gates of a matrix over tokens': (
    'padding is not read',
    'packed rows equal separate rows',
    *DECODING,
  ),
  # One with Full() refuses Causal().
  'recurrent layer in both directions': (
    'outputs ignore later tokens',
    'packed rows equal separate rows',
    *DECODING,
  ),
  # They sort the tokens of a row.
  'LSH attention': DECODING,
  # Under Full() all tokens of a row compete for the places in its clusters.
  'routing attention': ('packed rows equal separate rows', *DECODING),
  # Tokens of a row compete for the places of an expert.
  'experts that choose their tokens': (
    'outputs ignore later tokens',
    'packed rows equal separate rows',
    *DECODING,
  ),
  # Its matched keys are mixtures of the tokens of a row.
  'Sinkhorn attention': ('packed rows equal separate rows', *DECODING),
}

# They follow the order of the row, mix all of its tokens, or need a grid.
_IN_ROW_ORDER = (
  'windows of a grid',
  'axes of a grid',
  'rotations by row and column',
  'offsets of rows and columns',
  'convolutions of a grid',
  'attention to squares of a grid',
  'MLP of neighbours in a grid',
  'matrix over tokens',
  'gates of a matrix over tokens',
  'lightweight convolution',
  'dynamic convolution',
  'gated convolution',
  'dilated convolution with weight normalisation',
  'convolution before an attention to the source',
  'Linformer',
  'ProbSparse attention',
  'Nystrom attention',
  'memory-compressed attention',
  'linear attention',
  'linear attention with random features',
  'linear attention with redrawn features',
  'flow attention',
  'gated DeltaNet',
  'Mamba-2',
  'fast weights',
  'AFT-simple',
  'AFT-local',
  'AFT-conv',
  'AFT-full',
  'LSH attention',
  'Sinkhorn attention',
  'routing attention',
  'attention with forget gates',
  'token shift of attention',
  'token shift of an MLP',
  'mixture of experts',
  'mixture of two experts per token',
  'experts that choose their tokens',
  'experts of groups, by chance',
  'recurrent layer',
  'recurrent layer with gated units',
  'recurrent layer in both directions',
  'recurrent decoder from one vector',
  'recurrent decoder with the state before',
  'captioning decoder',
  'recurrent decoder',
  'attention beside an MLP',
)
REFUSED |= {
  name: (*REFUSED.get(name, ()), 'outputs ignore tokens later in the order')
  for name in _IN_ROW_ORDER
}
