"""Base classes and hooks of tasks that no longer exist, with what to write instead."""

from t2x.base.errors import UserError

# Name of a base class -> what a task of the user's writes instead.
BASES = {
  'DistillableTask': "derive from Task with 'learns_from_teacher = True' and the setting 'distillation: TeacherLoss | "
  "None = None', and return self.distilled(...) from sums",
  'DistillableTokens': 'derive from TextTask; CausalLM in t2x/tasks/causal_lm.py is an example',
  'JoinedDocuments': "derive from TextTask, with the settings 'length: Size' and 'packing: Callable[..., DocumentPlan] "
  "= ConcatenateAndSplit'",
  'MarkingTask': "derive from TextTask, with the setting 'marks: Mapping[str, MarkRule] = "
  "dataclasses.field(default_factory=dict)'",
  'ChosenTokens': 'derive from MaskedLM; PermutationLM in t2x/tasks/permutation_lm.py is an example without masks',
  'LabelTask': "derive from LabelledTask, with the setting 'labels: Annotated[Sequence[str], NonEmpty] = "
  "dataclasses.field()'",
  'TextsTask': 'derive from LabelledTask, with num_texts and plans',
  'FieldsTask': "derive from LabelledTask, with the settings 'fields: Annotated[Sequence[Text], NonEmpty] = ('text',)' "
  "and 'further_orders: Sequence[Sequence[Text]] = ()'",
  'TokenTask': "derive from TextTask, with the setting 'z_loss: TunableNonNegative = 0.0', an argument of "
  'model.cross_entropy',
  'SourceTargetTask': 'derive from TextTask; Translation in t2x/tasks/translation.py is an example',
  'TargetText': "derive from TextTask, with the settings 'target_length: Size', 'label_smoothing: TunableRate = 0.1' "
  "and 'strategy: Strategy = Beam(width=4)'",
  'DroppedPairs': "derive from TextTask, with the setting 'max_dropped: Fraction = 0.1'",
}
# The tasks of former base classes, whose hooks they called.
_TOKENS = ('CausalLM', 'MaskedLM', 'PermutationLM')
_SIDES = ('Captions', 'Denoising', 'SpanCorruption', 'Translation')
_TARGETS = ('Captions', 'PrefixLM', 'Translation')
_PIXELS = ('PixelLM', 'TextToImage')
_CLASSES = ('Classification', 'PixelClassification')
_FIELDS = ('SequenceClassification', 'TextRegression')
_TARGETS_OF = 'override sums and predictions, which select the hidden vectors of the targets'
_MASKS = 'override masks, the transform that chooses and masks tokens, or transform'
# Name of an attribute -> the classes that read it, and what to override instead.
HOOKS = {
  'targets_of': (_TOKENS, _TARGETS_OF),
  'target': (_TOKENS, _TARGETS_OF),
  'target_axis': (_TOKENS, _TARGETS_OF),
  'choices': (('MaskedLM', 'PermutationLM'), _MASKS),
  'chosen': (('MaskedLM', 'PermutationLM'), _MASKS),
  'token_sums': ((*_TOKENS, *_SIDES, *_TARGETS, *_PIXELS), 'override sums'),
  'side': (_SIDES, 'override sums, which computes the metadata of the tokens of both sides'),
  'columns': (_SIDES, 'override spec'),
  'label_smoothing': (('Denoising', 'SpanCorruption'), 'override sums'),
  'answers': (_TARGETS, 'override generate'),
  'generated': (_SIDES, 'override generate'),
  'class_sums': (_CLASSES, 'override sums'),
  'classified': (_FIELDS, 'override class_logits'),
}


def check_hooks(task: type) -> None:
  """Raises UserError if a class of tasks overrides an attribute that its base classes no longer read."""
  bases = {base.__name__ for base in task.__mro__[1:]}
  for name, (classes, line) in HOOKS.items():
    if name in vars(task) and not bases.isdisjoint(classes):
      verb = 'called' if callable(vars(task)[name]) else 'read'
      raise UserError(f'{task.__name__}.{name} would not be {verb}: {line}')
