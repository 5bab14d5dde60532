"""Everything that is wrong is told at once, each with its file and line and what to do."""

import pytest

GOOD = """
Experiment.model = @Model
Model.d_model = 8
Stack.num_layers = 2
Attention.num_heads = 4
MLP.hidden_dim = 16
"""
TYPES = 'Experiment.types = @Types()\n'


def test_all_errors_are_told_at_once_sorted_by_file_and_line(errors):
  assert errors(
    """
    include 'a.gin'
    MLP.hiden_dim = 3
    Experiment.nam = 'x'
    Stack.num_layers = 'two'
    """,
    '--gin.Experiment.nome=y',
    a=GOOD + 'Attentoin.num_heads = 4\nExperiment.name = %missing\n',
  ) == [
    "a.gin:6: no part named 'Attentoin'; did you mean 'Attention'?",
    'a.gin:7: macro %missing is not defined',
    "x.gin:2: MLP has no parameter 'hiden_dim'; did you mean 'hidden_dim'?",
    "x.gin:3: Experiment has no parameter 'nam'; did you mean 'name'?",
    "x.gin:4: Stack.num_layers wants int, got 'two'",
    "command line: Experiment has no parameter 'nome'; did you mean 'name'?",
  ]


@pytest.mark.parametrize(
  ('added', 'message'),
  [
    ("Experiment.extra = @Modle", "no part named 'Modle'; did you mean 'Model'?"),
    ("mlp.hidden_dim = 3", "no part named 'mlp'; did you mean 'MLP'?"),
    ("Trainer:\n  num_steps = 3", 'nothing uses Trainer.num_steps: Trainer is not on the path from Experiment'),
    ("Dense.precision = 'low'",
     'nothing uses Dense.precision: Dense is not on the path from Experiment; Attention.kernel has a '
     'default object of it: bind Attention.kernel = @Dense()'),
    ("a = %b\nb = [1, %a]\nExperiment.extra = %a", 'macro %a holds itself: a -> b -> a'),
    ("Model.d_modle = 3", "Model has no parameter 'd_modle'; did you mean 'd_model'?"),
    ("Experiment.zzz = 3",
     "Experiment has no parameter 'zzz'; it has model, trainer, types, name, extra"),
    ("Attention.d_model = 8",
     'Attention.d_model is given by the part that builds it: remove this binding'),
    ("Attention.rngs = None", 'Attention.rngs is given by the part that builds it: remove this binding'),
    ("Block.mixer = @Attention()", 'Block.mixer wants a factory: write @Attention, not @Attention()'),
    ("Block.pattern = @Causal", 'Block.pattern wants an object: write @Causal(), not @Causal'),
    ("Block.pattern = @Dense()", 'Block.pattern wants Pattern, but @Dense() is Dense'),
    ("Block.mixer = @MLP", 'Block.mixer wants Callable[..., Mixer], but @MLP builds MLP'),
    ("Block.cross = @MLP",
     'Block.cross wants Callable[..., Mixer], but @MLP builds MLP'),
    ("Block.feed_forward = @relu",
     'Block.feed_forward wants Callable[..., MLP], but @relu builds float'),
    ("MLP.activation = @relu()", 'MLP.activation wants a factory: write @relu, not @relu()'),
    ("MLP.init = @Normal",
     'MLP.init wants Callable[..., list]: write @Normal(), not @Normal'),
    ("Block.cross = 3", 'Block.cross wants Callable[..., Mixer] | None, got 3'),
    ("MLP.activation = @MLP",
     'MLP.activation wants Callable[[float], float], but @MLP builds MLP'),
    ("MLP.activation = @scaled", 'MLP.activation wants Callable[[float], float]: write @scaled()'),
    ("MLP.activation = @zero",
     'MLP.activation wants Callable[[float], float], but @zero does not take 1 by position'),
    ("MLP.activation = @add()",
     'MLP.activation wants Callable[[float], float], but @add() does not take 1 by position'),
    ("Stack.blocks = [@Block, @Causal]",
     'Stack.blocks wants Callable[..., Block], but @Causal builds Causal'),
    ("Stack.blocks = @Block", 'Stack.blocks wants Sequence[Callable[..., Block]], got @Block'),
    ("Experiment.extra = @Block()", 'Block is built by the part that holds it: write @Block, not @Block()'),
    ("Experiment.extra = @Window()",
     'Window needs size: write Window.size = ... (Window is Experiment.extra)'),
    ("Block.cross = @Block\n", 'Block.cross wants Callable[..., Mixer], but @Block builds Block'),
    ("Experiment.extra = @Experiment()", 'Experiment holds itself: Experiment -> Experiment'),
    ("num_layers = 3", 'nothing uses macro %num_layers; did you mean Stack.num_layers?'),
    ("MLP = 3", 'nothing uses macro %MLP; to bind a parameter write MLP.param = value'),
    ("encodr/MLP.hidden_dim = 3\nModel.encoder = @encoder/Stack",
     "nothing uses encodr/MLP.hidden_dim: no MLP stands in scope 'encodr'; did you mean 'encoder'?"),
    ("import no_such_module", "no module named 'no_such_module'"),
    ("include 'nowhere.gin'", "no file 'nowhere.gin' to include"),
  ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line(errors, added, message):
  found = errors(GOOD + added)
  wanted = f'x.gin:{7 if added.startswith("Trainer:") else 6}: {message}'
  assert any(line == wanted or line.startswith(wanted) for line in found), found


def test_missing_parameters_are_told_with_the_place_that_references_the_part(errors):
  assert errors(
    """
    Experiment.name = 'x'

    Experiment.trainer = @Trainer()
    Experiment.model = @Model
    Model.d_model = 8
    MLP.hidden_dim = 4
    decoder/Attention.num_heads = 1
    Model.decoder = @decoder/Stack
    """
  ) == [
    'x.gin:3: Trainer needs num_steps: write Trainer.num_steps = ... (Trainer is Experiment.trainer)',
    'x.gin:4: Attention needs num_heads: write Attention.num_heads = ... '
    '(Attention is the default of Block.mixer); it is bound only for decoder/Attention',
    'x.gin:4: Stack needs num_layers: write Stack.num_layers = ... '
    '(Stack is the default of Model.encoder)',
    'x.gin:8: decoder/Stack needs num_layers: write Stack.num_layers = ... '
    '(Stack is Model.decoder)',
  ]


@pytest.mark.parametrize(
  ('param', 'value', 'message'),
  [
    ('i', '1.5', 'wants int, got 1.5'),
    ('i', 'True', 'wants int, got True'),
    ('i', 'None', 'wants int, got None'),
    ('f', "'1'", "wants float, got '1'"),
    ('f', 'False', 'wants float, got False'),
    ('b', '1', 'wants bool, got 1'),
    ('s', '1', 'wants str, got 1'),
    ('maybe', "'x'", "wants int | None, got 'x'"),
    ('remat', "'ful'", "wants Literal['full', 'dots'] | None, got 'ful'"),
    ('ints', '[1, 2]', 'wants tuple[int, ...], got [1, 2]'),
    ('ints', '(1)', 'wants tuple[int, ...], got 1'),
    ('ints', "(1, 'x')", "wants int, got 'x'"),
    ('pair', '(1, 2, 3)', 'wants tuple[int, float], got (1, 2, 3)'),
    ('names', "'abc'", "wants Sequence[str], got 'abc'"),
    ('listed', '(1, 2)', 'wants list[float], got (1, 2)'),
    ('table', "{'a': 'b'}", "wants int, got 'b'"),
    ('table', '{1: 1}', 'wants str, got 1'),
    ('pattern', '3', 'wants Pattern, got 3'),
    ('pattern', "'Causal'", "wants Pattern, got 'Causal'"),
    ('patterns', '[@Causal]', 'wants an object: write @Causal(), not @Causal'),
    ('mixer', "'Attention'", "wants Callable[..., Mixer] | None, got 'Attention'"),
    ('mixer', '@Attention()', 'wants a factory: write @Attention, not @Attention()'),
    ('init', '@Causal()', 'wants a factory or function: write @Causal, not @Causal()'),
    ('i', '@Causal()', 'wants int, but @Causal() is Causal'),
  ],
)  # fmt: skip
def test_wrong_types_are_refused(errors, param, value, message):
  assert f'x.gin:2: Types.{param} {message}' in errors(TYPES + f'Types.{param} = {value}\n')


@pytest.mark.parametrize(
  ('param', 'value', 'wanted'),
  [
    ('f', '1', 1.0),
    ('maybe', 'None', None),
    ('none_default', 'None', None),
    ('remat', "'full'", 'full'),
    ('ints', '(1,)', (1,)),
    ('pair', '(1, 2)', (1, 2.0)),
    ('names', "['a', 'b']", ['a', 'b']),
    ('names', "('a',)", ('a',)),
    ('listed', '[1, 2.5]', [1.0, 2.5]),
    ('table', "{'a': 1}", {'a': 1}),
    ('whatever', "[{'a': (1, None)}]", [{'a': (1, None)}]),
    ('open', '3', 3),
  ],
)  # fmt: skip
def test_right_types_are_taken(read, param, value, wanted):
  found = getattr(read(TYPES + f'Types.{param} = {value}').build().types, param)
  assert found == wanted
  assert repr(found) == repr(wanted)


def test_objects_factories_and_functions_are_taken(read, parts):
  types = (
    read(
      TYPES
      + """
Types.pattern = @Window()
Types.patterns = (@Causal(), %w)
w = @Window()
Window.size = 3
Types.mixer = @Attention
Attention.num_heads = 2
Types.activation = @gelu
Types.init = @Constant()
Constant.value = 1
"""
    )
    .build()
    .types
  )
  assert types.pattern == parts.Window(3)
  assert types.patterns == (parts.Causal(), parts.Window(3))
  assert types.mixer.func is parts.Attention
  assert types.mixer.keywords == {'num_heads': 2}
  assert types.activation is parts.gelu
  assert types.init == parts.Constant(1.0)
  assert repr(types.init.value) == '1.0'


def test_a_type_error_behind_a_macro_names_the_macro(errors):
  assert errors('width = "wide"\n' + TYPES + 'Types.i = %width') == [
    "x.gin:3: Types.i wants int, got 'wide' (%width is from x.gin:1)"
  ]


def test_undefined_macros_are_told_with_the_one_that_was_meant(errors):
  assert errors(TYPES + 'd_model = 3\nTypes.i = %d_modle') == [
    'x.gin:3: macro %d_modle is not defined; did you mean %d_model?'
  ]


@pytest.mark.parametrize(
  ('text', 'line'),
  [
    ("Types.i = 3 4\n", 1),
    ("# text\nTypes.i = \n", 2),
    ("Types.i = 3\nTypes.ints = (1,\n  2\n", 2),
    ("Types.table = {\n  'a': 1,\n", 1),
    ("Types.s = 'abc\n", 1),
    ("Types.i = $x\n", 1),
    ("Types.i = x\n", 1),
    ("Types:\n  i = 3\n s = 'x'\n", 3),
    ("Types.table = {[1]: 2}\n", 1),
    ("Types.table = {\n  'a': 1,\n  'b': {'a': 3},\n  'a': 2,\n}\n", 4),
    ("Types.i = @\n", 1),
    ("a b\n", 1),
  ],
)  # fmt: skip
def test_what_cannot_be_parsed_is_told_with_its_line(errors, text, line):
  (found,) = [e for e in errors(TYPES, files=('x.gin', 'bad.gin'), bad=text) if 'bad.gin' in e]
  assert found.startswith(f'bad.gin:{line}: cannot be read: '), found


def test_a_syntax_error_hides_no_error_of_other_files(errors):
  found = errors("include 'bad.gin'\nExperiment.nam = %x\n", bad='Types.i = (')
  assert found == [
    "bad.gin:1: cannot be read: '(' is never closed",
    "x.gin:2: Experiment has no parameter 'nam'; did you mean 'name'?",
  ]


def test_a_word_that_lacks_its_sign_is_told(errors):
  for text in ('Types.s = relu', "Types.table = {'a': relu}"):
    assert errors(TYPES, files=('x.gin', 'bad.gin'), bad=text) == [
      "bad.gin:1: cannot be read: relu is no value: @relu is a part, %relu a macro, 'relu' a text"
    ]


def test_include_loops_are_refused(errors):
  assert errors("include 'a.gin'", a="\ninclude 'b.gin'", b="include 'x.gin'") == [
    'b.gin:1: include loop: x.gin -> a.gin -> b.gin -> x.gin'
  ]


def test_a_missing_config_and_one_that_is_no_text_are_refused(errors, tmp_path):
  assert errors('', files=('nowhere.gin',)) == [
    'nowhere.gin: cannot read the config: No such file or directory'
  ]
  (tmp_path / 'binary.gin').write_bytes(b'\xff\xfe\x00')
  assert errors('', files=('binary.gin',)) == [
    "binary.gin:1: 'binary.gin' is not a text file in UTF-8"
  ]


def test_what_a_part_refuses_is_told_with_the_place_that_asked_for_it(read):
  config = read(TYPES + 'Types.pattern = @Window()\nWindow.size = -1')
  with pytest.raises(Exception, match=r'^x\.gin:2: Window: size must be positive, got -1$'):
    config.build()


@pytest.mark.parametrize(
  ('override', 'message'),
  [
    ('Types.i', "'--gin.Types.i' needs a value: --gin.NAME=VALUE"),
    ('Types.i=', "'--gin.Types.i' needs a value: --gin.NAME=VALUE"),
    ('Ty pes.i=1', "'Ty pes.i' is no name: write --gin.Name.param=VALUE"),
    ('Types.ints=(1,', "--gin.Types.ints=(1, cannot be read: '(' is never closed"),
    ('Types.i=ten', "Types.i wants int, got 'ten'"),
    ('wdth=3', 'nothing uses macro %wdth; did you mean %width?'),
    ('encoder/Types.i=1', "nothing uses encoder/Types.i: no Types stands in scope 'encoder'"),
  ],
)  # fmt: skip
def test_bad_overrides_are_told(errors, override, message):
  text = TYPES + 'width = 3\nTypes.maybe = %width'
  assert errors(text, override) == [f'command line: {message}']
