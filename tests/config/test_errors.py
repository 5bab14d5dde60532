"""Everything that is wrong is told at once, each with its file and line and what to do."""

import sys
from pathlib import Path

import pytest

from t2x.base.errors import UserError
from t2x.experiments import read_config
from tests.config.conftest import GOOD

ROOT = Path(__file__).parents[2]
TYPES = 'Experiment.types = @Types()\n'


def test_all_errors_are_reported_at_once_sorted_by_file_and_line(errors):
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
    "x.gin:4: Stack.num_layers must be an integer, got 'two'",
    "command line: Experiment has no parameter 'nome'; did you mean 'name'?",
  ]


@pytest.mark.parametrize(
  ('added', 'message'),
  [
    ("Experiment.extra = @Modle", "no part named 'Modle'; did you mean 'Model'?"),
    ("mlp.hidden_dim = 3", "no part named 'mlp'; did you mean 'MLP'?"),
    ("Trainer:\n  num_steps = 3", 'nothing uses Trainer.num_steps: Trainer is not reachable from Experiment'),
    ("Dense.precision = 'low'",
     'nothing uses Dense.precision: Dense is not reachable from Experiment; the default of '
     'Attention.kernel is already built: bind Attention.kernel = @Dense()'),
    ("a = %b\nb = [1, %a]\nExperiment.extra = %a", 'macro %a refers to itself: a -> b -> a'),
    ("Model.d_modle = 3", "Model has no parameter 'd_modle'; did you mean 'd_model'?"),
    ("Experiment.zzz = 3",
     "Experiment has no parameter 'zzz'; it has model, trainer, types, name, extra"),
    ("Attention.d_model = 8",
     'Attention.d_model is set by the part that contains Attention: remove this binding'),
    ("Attention.rngs = None",
     'Attention.rngs is set by the part that contains Attention: remove this binding'),
    ("Block.mixer = @Attention()", 'Block.mixer must be a part, not an object: write @Attention, not @Attention()'),
    ("Block.pattern = @Causal", 'Block.pattern must be an object: write @Causal(), not @Causal'),
    ("Block.pattern = @Dense()", 'Block.pattern must be a Pattern (@Name()), but @Dense() is a Dense'),
    ("Block.mixer = @MLP",
     'Block.mixer must be a part that builds a Mixer (@Name), but @MLP builds an MLP: MLP has no mix'),
    ("Block.cross = @MLP",
     'Block.cross must be a part that builds a Mixer (@Name), but @MLP builds an MLP'),
    ("Block.feed_forward = @relu",
     'Block.feed_forward must be a part that builds an MLP (@Name), but @relu builds a number'),
    ("MLP.activation = @relu()", 'MLP.activation must be a part, not an object: write @relu, not @relu()'),
    ("MLP.init = @Normal",
     'MLP.init must be a part or function (@Name): write @Normal(), not @Normal'),
    ("Block.cross = 3", 'Block.cross must be a part that builds a Mixer (@Name) or None, got 3'),
    ("MLP.activation = @MLP",
     'MLP.activation must be a function (@Name), but @MLP builds an MLP'),
    ("MLP.activation = @scaled", 'MLP.activation must be a function (@Name): write @scaled()'),
    ("MLP.activation = @zero",
     'MLP.activation must be a function (@Name), but @zero does not accept 1 positional argument(s)'),
    ("MLP.activation = @add()",
     'MLP.activation must be a function (@Name), but @add() does not accept 1 positional argument(s)'),
    ("Stack.blocks = [@Block, @Causal]",
     'Stack.blocks must be a part that builds a Block (@Name), but @Causal builds a Causal'),
    ("Stack.blocks = @Block", 'Stack.blocks must be a list of parts that build a Block (@Name), got @Block'),
    ("Experiment.extra = @Block()", 'Block must be built by the part that contains it: write @Block, not @Block()'),
    ("Experiment.extra = @Window()",
     'Window needs a value for size: write Window.size = ... (Window is Experiment.extra)'),
    ("Block.cross = @Block\n", 'Block.cross must be a part that builds a Mixer (@Name), but @Block builds a Block'),
    ("Experiment.extra = @Experiment()", 'Experiment contains itself: Experiment -> Experiment'),
    ("num_layers = 3", 'nothing uses macro %num_layers; did you mean Stack.num_layers?'),
    ("MLP = 3", 'nothing uses macro %MLP; to bind a parameter, write MLP.param = value'),
    ("encodr/MLP.hidden_dim = 3\nModel.encoder = @encoder/Stack",
     "nothing uses encodr/MLP.hidden_dim: no MLP is used in scope 'encodr'; did you mean 'encoder'?"),
    ("import no_such_module", "no module named 'no_such_module'"),
    ("include 'nowhere.gin'",
     "cannot include 'nowhere.gin': it is neither in the folder of this file nor in the working directory"),
  ],
)  # fmt: skip
def test_each_mistake_is_reported_with_its_line(errors, added, message):
  found = errors(GOOD + added)
  wanted = f'x.gin:{7 if added.startswith("Trainer:") else 6}: {message}'
  assert any(line == wanted or line.startswith(wanted) for line in found), found


def test_missing_parameters_are_reported_with_the_line_that_references_the_part(errors):
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
    'x.gin:3: Trainer needs a value for num_steps: write Trainer.num_steps = ... (Trainer is Experiment.trainer)',
    'x.gin:4: Attention needs a value for num_heads: write Attention.num_heads = ... '
    '(Attention is the default of Block.mixer); it is bound only for decoder/Attention',
    'x.gin:4: Stack needs a value for num_layers: write Stack.num_layers = ... '
    '(Stack is the default of Model.encoder)',
    'x.gin:8: decoder/Stack needs a value for num_layers: write Stack.num_layers = ... '
    '(Stack is Model.decoder)',
  ]


@pytest.mark.parametrize(
  ('param', 'value', 'message'),
  [
    ('i', '1.5', 'must be an integer, got 1.5'),
    ('i', 'True', 'must be an integer, got True'),
    ('i', 'None', 'must be an integer, got None'),
    ('f', "'1'", "must be a number, got '1'"),
    ('f', 'False', 'must be a number, got False'),
    ('b', '1', 'must be True or False, got 1'),
    ('s', '1', 'must be a string in quotes, got 1'),
    ('maybe', "'x'", "must be an integer or None, got 'x'"),
    ('remat', "'ful'", "must be 'full', 'dots' or None, got 'ful'"),
    ('ints', '[1, 2]', 'must be a tuple of integers, got [1, 2]'),
    ('ints', '(1)', 'must be a tuple of integers, got 1'),
    ('ints', "(1, 'x')", "must be an integer, got 'x'"),
    ('pair', '(1, 2, 3)', 'must be a tuple (an integer, a number), got (1, 2, 3)'),
    ('names', "'abc'", "must be a list of strings in quotes, got 'abc'"),
    ('listed', '(1, 2)', 'must be a list of numbers, got (1, 2)'),
    ('table', "{'a': 'b'}", "must be an integer, got 'b'"),
    ('table', '{1: 1}', 'must be a string in quotes, got 1'),
    ('pattern', '3', 'must be a Pattern (@Name()), got 3'),
    ('pattern', "'Causal'", "must be a Pattern (@Name()), got 'Causal'"),
    ('patterns', '[@Causal]', 'must be an object: write @Causal(), not @Causal'),
    ('mixer', "'Attention'", "must be a part that builds a Mixer (@Name) or None, got 'Attention'"),
    ('mixer', '@Attention()', 'must be a part, not an object: write @Attention, not @Attention()'),
    ('init', '@Causal()', 'must be a part or function: write @Causal, not @Causal()'),
    ('i', '@Causal()', 'must be an integer, but @Causal() is a Causal'),
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


@pytest.mark.parametrize(
  ('param', 'value', 'message'),
  [
    ('rate', '1.0', 'must be at least 0 and below 1, got 1.0'),
    ('rate', '-1', 'must be at least 0 and below 1, got -1'),
    ('rate', '1e999', 'must be at least 0 and below 1, got inf'),
    ('rate', "'x'", "must be a number, got 'x'"),
    ('maybe_positive', '0', 'must be above 0, got 0'),
    ('maybe_positive', '1e999', 'must be above 0, got inf'),
    ('maybe_positive', "''", "must be a number or None, got ''"),
    ('count', '0', 'must be at least 1 and at most 2147483647, got 0'),
    ('count', '10000000000', 'must be at least 1 and at most 2147483647, got 10000000000'),
    ('path', "''", "must not be empty, got ''"),
    ('counts', '[]', 'must not be empty, got []'),
    ('counts', '[1, 0]', 'must be at least 1 and at most 2147483647, got 0'),
    ('finite', '-1e999', 'must be a finite number, got -inf'),
  ],
)  # fmt: skip
def test_values_out_of_their_range_are_refused(errors, param, value, message):
  text = f'Experiment.extra = @Ranges()\nRanges.{param} = {value}\n'
  assert errors(text) == [f'x.gin:2: Ranges.{param} {message}']


def test_values_in_their_range_are_taken(read):
  text = 'Experiment.extra = @Ranges()\n'
  for param, value in [('rate', 0), ('rate', 0.999), ('maybe_positive', None), ('counts', [3])]:
    built = read(text + f'Ranges.{param} = {value}\n').build().extra
    assert getattr(built, param) == value


@pytest.mark.parametrize('first', ['Types.i = 1', 'Types:\n  i = 1', 'fake_parts.Types.i = 1'])
def test_a_parameter_bound_twice_in_one_file_is_refused(errors, first):
  line = 3 + first.count('\n')
  (found,) = errors(TYPES + first + '\nTypes.i = 2\n')
  assert (
    found
    == f'x.gin:{line}: Types.i is bound twice: remove this binding or the one in line {line - 1}'
  )


def test_a_macro_bound_twice_in_one_file_is_refused(errors):
  assert errors(TYPES + 'a = 1\nTypes.i = %a\na = 2\n') == [
    'x.gin:4: a is bound twice: remove this binding or the one in line 2'
  ]


def test_another_file_another_scope_and_the_command_line_may_bind_again(read):
  found = read(
    "include 'a.gin'\nTypes.i = 2\n", '--gin.Types.i=3', a=TYPES + 'Types.i = 1\n'
  ).build()
  assert found.types.i == 3


@pytest.mark.parametrize(
  ('part', 'message'),
  [
    ('NoCache', 'builds a NoCache: NoCache has no cache'),
    ('MLP', 'builds an MLP: MLP has no cache and __call__'),
    ('OfAnother', 'builds an OfAnother: OfAnother is a Mixer'),
    ('NoTuple', 'NoTuple.implements must be a tuple of interfaces, such as (Called,)'),
    ('FewArguments', "FewArguments.__call__ cannot be called as (x, pattern=): got an unexpected"),
    ('OneValue', 'OneValue.__call__ returns a tuple of 1, not a tuple of 2'),
  ],
)  # fmt: skip
def test_the_error_of_a_part_states_why_it_does_not_follow_its_protocol(errors, part, message):
  (found,) = errors(f'Experiment.extra = @Strict()\nStrict.mixer = @{part}\n')
  begins = f'x.gin:2: Strict.mixer must be a part that builds a Called (@Name), but @{part} '
  assert found.startswith(begins)
  assert message in found


@pytest.mark.parametrize('part', ['Fits', 'Declared'])
def test_a_part_that_declares_its_protocol_or_fits_it_is_accepted(read, part):
  read(f'Experiment.extra = @Strict()\nStrict.mixer = @{part}\n')


@pytest.mark.parametrize(
  ('binding', 'message'),
  [
    ('PreNorm.norm=@Classifier', 'a Norm (@Name), but @Classifier builds a Classifier: Classifier is a ClassHead'),
    ('PreNorm.norm=@Linear', 'a Norm (@Name), but @Linear builds a Linear'),
    ('VisionTransformer.head=@GatedHeads',
     'a ClassHead (@Name), but @GatedHeads builds a GatedHeads: GatedHeads is a HeadOutputs'),
  ],
)  # fmt: skip
def test_a_part_of_another_interface_is_refused(binding, message):
  with pytest.raises(UserError) as caught:
    read_config([ROOT / 'configs/runs/quickstart.gin'], [f'--gin.{binding}'])
  (line,) = str(caught.value).splitlines()
  name = binding.partition('=')[0]
  assert line.startswith(f'command line: {name} must be a part that builds ')
  assert message in line


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
    "x.gin:3: Types.i must be an integer, got 'wide' (%width is from x.gin:1)"
  ]


def test_an_undefined_macro_is_reported_with_a_suggestion(errors):
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
def test_a_syntax_error_is_reported_with_its_line(errors, text, line):
  (found,) = [e for e in errors(TYPES, files=('x.gin', 'bad.gin'), bad=text) if 'bad.gin' in e]
  assert found.startswith(f'bad.gin:{line}: syntax error: '), found


def test_a_syntax_error_hides_no_error_of_other_files(errors):
  found = errors("include 'bad.gin'\nExperiment.nam = %x\n", bad='Types.i = (')
  assert found == [
    "bad.gin:1: syntax error: '(' is never closed",
    "x.gin:2: Experiment has no parameter 'nam'; did you mean 'name'?",
  ]


def test_a_word_without_its_sign_is_reported(errors):
  for text in ('Types.s = relu', "Types.table = {'a': relu}"):
    assert errors(TYPES, files=('x.gin', 'bad.gin'), bad=text) == [
      "bad.gin:1: syntax error: relu is not a value: write @relu (part), %relu (macro) or 'relu' (string)"
    ]


def test_include_loops_are_refused(errors):
  assert errors("include 'a.gin'", a="\ninclude 'b.gin'", b="include 'x.gin'") == [
    'b.gin:1: include loop: x.gin -> a.gin -> b.gin -> x.gin'
  ]


def test_a_missing_config_and_one_that_is_no_text_are_refused(errors, tmp_path):
  assert errors('', files=('nowhere.gin',)) == [
    'nowhere.gin: cannot read the config file: No such file or directory'
  ]
  (tmp_path / 'binary.gin').write_bytes(b'\xff\xfe\x00')
  assert errors('', files=('binary.gin',)) == [
    "binary.gin:1: 'binary.gin' is not a UTF-8 text file"
  ]


def test_an_error_of_a_part_is_reported_with_the_line_that_references_it(read):
  config = read(TYPES + 'Types.pattern = @Window()\nWindow.size = -1')
  with pytest.raises(Exception, match=r'^x\.gin:2: Window: size must be positive, got -1$'):
    config.build()


@pytest.mark.parametrize(
  ('override', 'message'),
  [
    ('Types.i', "'--gin.Types.i' has no value: write --gin.NAME=VALUE"),
    ('Types.i=', "'--gin.Types.i' has no value: write --gin.NAME=VALUE"),
    ('Ty pes.i=1', "'Ty pes.i' is not a valid name: write --gin.Name.param=VALUE"),
    ('Types.ints=(1,', "syntax error in --gin.Types.ints=(1,: '(' is never closed"),
    ('Types.i=ten', "Types.i must be an integer, got 'ten'"),
    ('wdth=3', 'nothing uses macro %wdth; did you mean %width?'),
    ('encoder/Types.i=1', "nothing uses encoder/Types.i: no Types is used in scope 'encoder'"),
  ],
)  # fmt: skip
def test_invalid_overrides_are_reported(errors, override, message):
  text = TYPES + 'width = 3\nTypes.maybe = %width'
  assert errors(text, override) == [f'command line: {message}']


@pytest.mark.parametrize('where', ['beside', 'working directory'])
def test_a_missing_import_is_named(errors, tmp_path, tmp_path_factory, monkeypatch, where):
  here = tmp_path_factory.mktemp('here')
  monkeypatch.chdir(here)
  folder = tmp_path if where == 'beside' else here
  (folder / 'no_part.py').write_text('MyMixer = 1\n# class MyMixer\n')
  (folder / 'unimported_mixer.py').write_text('class MyMixer(Base):\n  pass\n')
  file, hint = (
    tmp_path / 'x.gin',
    'unimported_mixer.py defines {}: write `import unimported_mixer` in {}',
  )

  def messages(*texts):
    return [line.partition(': ')[2] for line in errors(*texts, files=[str(file)])]

  expected = hint.format('MyMixer', file)
  assert messages(GOOD + 'Block.mixer = @MyMixer\nMyMixer.size = 2\n') == [expected, expected]
  assert messages(GOOD, '--gin.Block.mixer=@MyMixer') == [hint.format('MyMixer', 'the gin file')]
  # A function too; a module that is imported already only lacks the name.
  (folder / 'unimported_mixer.py').write_text('def my_relu(x):\n  return x\n')
  assert messages(GOOD + 'MLP.activation = @my_relu\n') == [hint.format('my_relu', file)]
  monkeypatch.setitem(sys.modules, 'unimported_mixer', sys)
  expected = "no part named 'my_relu'; did you mean 'relu'?"
  assert messages(GOOD + 'MLP.activation = @my_relu\n') == [expected]
