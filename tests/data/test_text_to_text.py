"""Examples as text: T5's tasks word for word, templates, patterns, prompts, demonstrations, cuts."""

import json
import re

import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.core.errors import ConfigError
from plm_jax.data import text_to_text
from plm_jax.data.corpora import sources
from plm_jax.data.corpora.records import Whole
from plm_jax.data.rows import demonstrations, written
from plm_jax.data.rows.forms import marked, patterns, prompts, t5, template
from plm_jax.scores import glue, superglue
from plm_jax.text import byte_bpe
from tests import conftest
from tests.data import small


class WordVocab(small.NumberVocab):
  """A vocabulary with a token for each word and mark, in order of first use."""

  def __init__(self, **settings):
    super().__init__(**settings)
    self.words = []

  def encode(self, text):
    return [self.number(word) for word in re.findall(r'\w+|[^\w\s]', text)]

  def number(self, word):
    if word not in self.words:
      self.words.append(word)
    return len(small.SPECIAL) + self.words.index(word)

  def token(self, token_id):
    return small.SPECIAL[token_id] if token_id < len(small.SPECIAL) else self.words[token_id - len(small.SPECIAL)]


def write(form, row):
  return form.write(row)


# Forms ---------------------------------------------------------------------------------------------------------------

PAIR = {'sentence1': 'A b.', 'sentence2': 'C d.', 'label': 1, 'idx': 0}
NLI = {'premise': 'A b.', 'hypothesis': 'C d.', 'label': 0, 'idx': 0}
T5 = {
  'cola': ({'sentence': 'A b.', 'label': 0}, 'cola sentence: A b.', 'unacceptable'),
  'sst2': ({'sentence': 'A b.', 'label': 1}, 'sst2 sentence: A b.', 'positive'),
  'mrpc': (PAIR, 'mrpc sentence1: A b. sentence2: C d.', 'equivalent'),
  'stsb': ({**PAIR, 'label': 3.25}, 'stsb sentence1: A b. sentence2: C d.', '3.2'),
  'qqp': ({'question1': 'A?', 'question2': 'B?', 'label': 0}, 'qqp question1: A? question2: B?', 'not_duplicate'),
  'mnli': ({**NLI, 'label': 2}, 'mnli hypothesis: C d. premise: A b.', 'contradiction'),
  'qnli': ({'question': 'A?', 'sentence': 'B.', 'label': 1}, 'qnli question: A? sentence: B.', 'not_entailment'),
  'rte': ({**PAIR, 'label': 0}, 'rte sentence1: A b. sentence2: C d.', 'entailment'),
  'super_glue_rte': (NLI, 'rte hypothesis: C d. premise: A b.', 'entailment'),
  'axb': (PAIR, 'rte hypothesis: C d. premise: A b.', 'not_entailment'),
  'axg': (NLI, 'rte hypothesis: C d. premise: A b.', 'entailment'),
  'boolq': ({'passage': 'A b.', 'question': 'is it', 'label': 1}, 'boolq passage: A b. question: is it', 'True'),
  'cb': ({**NLI, 'label': 1}, 'cb hypothesis: C d. premise: A b.', 'contradiction'),
  'copa': (
    {'premise': 'A b.', 'choice1': 'C.', 'choice2': 'D.', 'question': 'effect', 'label': 1},
    'copa choice1: C. choice2: D. premise: A b. question: effect',
    'choice2',
  ),
  'multirc': (
    {'question': 'A?', 'answer': 'B', 'paragraph': '<b>Sent 1: </b>C.<br>D.', 'label': 0},
    'multirc question: A? answer: B paragraph: Sent 1: C. D.',
    'False',
  ),
  'record': (
    {
      'query': 'A @placeholder is a bird.',
      'entities': ['penguin', 'potato', 'pigeon'],
      'answers': ['penguin', 'pigeon'],
      'passage': 'One.\n@highlight\nTwo\n@highlight\nThree',
    },
    'record query: A @placeholder is a bird. entities: penguin, potato, pigeon passage: One. Two. Three',
    'penguin',
  ),
  'wic': (
    {'sentence1': 'A b.', 'sentence2': 'C d.', 'word': 'b', 'label': 0, 'start1': 2},
    'wic sentence1: A b. sentence2: C d. word: b',
    'False',
  ),
  'wsc': (
    {'text': 'Bob asked Tom if he can lend it.', 'span1_text': 'Tom', 'span2_text': 'he', 'span2_index': 4, 'label': 1},
    'wsc: Bob asked Tom if *he* can lend it.',
    'Tom',
  ),
  'wsc_marked': (
    {
      'text': 'This is a test sentence .', 'span1_text': 'test', 'span1_index': 3, 'span2_text': 'This',
      'span2_index': 0, 'label': 0,
    },
    'wsc text: # This # is a * test * sentence .',
    'False',
  ),
  'dpr': (
    {'sentence': 'Bob asked Tom if he can lend it.', 'pronoun': 'he', 'candidates': ['Bob', 'Tom'], 'label': 1},
    'wsc: Bob asked Tom if *he* can lend it.',
    'Tom',
  ),
  'wnli': (
    {'sentence1': 'The fish ate the worm. It was tasty.', 'sentence2': 'The worm was tasty.', 'label': 1},
    'wsc: The fish ate the worm. *It* was tasty.',
    'The worm',
  ),
  'squad': (
    {'question': "What's it?", 'context': 'The (big) one.', 'answers': {'text': ['big'], 'answer_start': [5]}},
    "question: What ' s it ? context: The ( big ) one .",
    'big',
  ),
  'cnn_dailymail': ({'article': 'A b.', 'highlights': 'C.'}, 'summarize: A b.', 'C.'),
  'xsum': ({'document': 'A b.', 'summary': 'C.'}, 'summarize: A b.', 'C.'),
  'scitldr': ({'source': ['A b.', 'C.'], 'target': ['D.', 'E.']}, 'summarize: A b. C.', 'D.'),
  'wmt_en_de': ({'en': 'Good.', 'de': 'Gut.'}, 'translate English to German: Good.', 'Gut.'),
  'wmt_en_fr': ({'en': 'Good.', 'fr': 'Bon.'}, 'translate English to French: Good.', 'Bon.'),
  'wmt_en_ro': ({'en': 'Good.', 'ro': 'Bun.'}, 'translate English to Romanian: Good.', 'Bun.'),
}  # fmt: skip


def test_every_task_of_t5_is_here():
  assert T5.keys() == t5.TASKS.keys()


@pytest.mark.parametrize('task', T5)
def test_t5_writes_a_row_word_for_word(task):
  """Check the examples of the released preprocessors and of appendix D."""
  row, inputs, target = T5[task]
  found = write(t5.make(task=task), row)
  assert (found.inputs, found.targets[0]) == (inputs, target)
  if found.options:
    assert found.options[found.label] == target


@pytest.mark.parametrize('task', [task for task, (row, _, _) in T5.items() if isinstance(row.get('label'), int)])
def test_a_label_that_is_not_known_has_no_target(task):
  found = write(t5.make(task=task), {**T5[task][0], 'label': -1})
  assert found.targets == () and found.label == -1
  with pytest.raises(ValueError, match="'label' holds 9"):
    if t5.TASKS[task].labels:
      write(t5.make(task=task), {**T5[task][0], 'label': 9})
    else:
      raise ValueError("'label' holds 9")


@pytest.mark.parametrize(
  ('score', 'text'), [(0, '0.0'), (5, '5.0'), (2.5, '2.4'), (1.1, '1.2'), (4.6, '4.6'), (-1, '')]
)
def test_scores_are_written_to_the_nearest_fifth(score, text):
  """Round 2.5, between 2.4 and 2.6, to the even fifth, as in TensorFlow."""
  found = write(t5.make(task='stsb'), {**PAIR, 'label': score})
  assert found.targets == ((text,) if text else ())


def test_the_wrong_noun_of_wsc_is_not_trained_on():
  assert write(t5.make(task='wsc'), {**T5['wsc'][0], 'label': 0}).targets == ()


@pytest.mark.parametrize(
  ('text', 'index', 'pronoun', 'marked_text'),
  [
    # row 42 of the published validation split counts a word too few
    ('Some day they might want to use it , but now, what more ?', 6, 'it', 'might want to use *it* , but now'),
    ('She saw the dog and he ran off .', 4, 'he', 'She saw the dog and *he* ran'),  # beside it, and in no other word
    ('John laughed. "Good for him," he said. ', 4, 'him', '"Good for *him*," he said'),
  ],
)
def test_the_pronoun_of_wsc_is_found_beside_its_place(text, index, pronoun, marked_text):
  row = {'text': text, 'span1_text': 'x', 'span2_text': pronoun, 'span2_index': index, 'label': 1}
  assert marked_text in write(t5.make(task='wsc'), row).inputs
  with pytest.raises(ValueError, match=r"'span2_text' is 'he'.*word 1 of 'The dog'"):
    write(t5.make(task='wsc'), {**row, 'text': 'The dog', 'span2_text': 'he', 'span2_index': 1})


WSC = {
  'text': 'Bob said to Tom: "he has won, Tom."', 'span1_text': 'Tom', 'span1_index': 3, 'span2_text': 'he',
  'span2_index': 4, 'label': 1,
}  # fmt: skip
IN_A_BLANK = 'Bob said to Tom: "*he* has won, Tom." The pronoun \'*he*\' refers to [MASK].'


@pytest.mark.parametrize('label', [1, True, 0, -1])
def test_wsc_with_marks_is_classified_and_in_a_blank_is_written(label):
  row = {**WSC, 'label': label}
  found = write(marked.make(), row)
  assert found.inputs == 'Bob said to * Tom *: "# he # has won, Tom."'
  assert (found.options, found.label) == (('False', 'True'), int(label))
  assert found.targets == {1: ('True',), 0: ('False',), -1: ()}[int(label)]
  found = write(patterns.make(task='wsc'), row)
  assert found.inputs.replace(written.MARK, written.BLANK) == IN_A_BLANK
  assert (found.targets, found.options) == (('Tom',) if label == 1 else (), ())


@pytest.mark.parametrize(
  ('changes', 'inputs'),
  [
    ({'span1_index': 2, 'span2_index': 5}, 'Bob said to * Tom *: "# he # has won, Tom."'),  # a word beside it
    ({'span1_index': 7}, 'Bob said to Tom: "# he # has won, * Tom *."'),  # its second place
    ({'span1_text': 'tom'}, 'Bob said to * Tom *: "# he # has won, Tom."'),
    ({'span1_text': 'Bob said', 'span1_index': 0}, '* Bob said * to Tom: "# he # has won, Tom."'),
    ({'span1_text': 'Bob\nsaid.', 'span1_index': 0}, '* Bob said * to Tom: "# he # has won, Tom."'),
    (  # a published noun with other words between its own
      {
        'text': 'Kamenev, said Bob, and Zinoviev: "he has won."',
        'span1_text': 'Kamenev and Zinoviev',
        'span1_index': 0,
        'span2_index': 5,
      },
      '* Kamenev *, said Bob, and Zinoviev: "# he # has won."',
    ),
  ],
)
def test_spans_of_wsc_are_found_by_their_words(changes, inputs):
  assert write(marked.make(), {**WSC, **changes}).inputs == inputs


def test_a_text_may_have_its_marks_already():
  text = '* Tom * told Bob that # he # had won.'
  assert write(marked.make(), {'text': text}) == written.Written(text, (), ('False', 'True'), -1)
  with pytest.raises(ValueError, match=r'\* Tom'):
    write(marked.make(), {'text': text.replace('#', '')})


@pytest.mark.parametrize('changes', [{'span1_index': 0}, {'span2_index': 40}, {'span2_text': 'h', 'span2_index': 4}])
def test_a_span_of_wsc_that_is_elsewhere_is_refused(changes):
  with pytest.raises(ValueError, match='word'):
    write(marked.make(), {**WSC, **changes})


def test_a_template_joins_lists_and_takes_each_text_of_a_target():
  row = {'source': ['A b.', 'C d.'], 'target': ['one', 'two'], 'answers': {'text': ['x']}}
  form = template.make(inputs='sum: {source}', target='{target}')
  assert write(form, row) == written.Written('sum: A b. C d.', ('one', 'two'))
  assert write(template.make(inputs='{answers.text}!', target='no {target}'), row).targets == ('no one two',)


def test_a_template_has_options():
  row = {'text': 'A', 'endings': ['x', 'y', 'z'], 'label': 2, 'name': 'bad'}
  listed = write(template.make(inputs='{text}', options=('{endings}',)), row)
  assert listed == written.Written('A', ('z',), ('x', 'y', 'z'), 2)
  words = template.make(inputs='{text}', options=('good', 'bad'), label='name')
  assert words.options == ('good', 'bad')
  assert write(words, row) == written.Written('A', ('bad',), ('good', 'bad'), 1)
  assert write(words, {**row, 'name': None}).label == -1


@pytest.mark.parametrize(
  ('row', 'message'),
  [
    ({'text': 'A', 'label': 2}, "'label' holds 2.* 1"),
    ({'text': 'A', 'label': 'x'}, "'label' holds 'x'"),
    ({'label': 0}, "no field 'text'.*label"),
    ({'text': {'en': 3}, 'label': 0}, "'text'"),
  ],
)
def test_a_row_that_cannot_be_written_is_said(row, message):
  with pytest.raises(ValueError, match=message):
    write(template.make(inputs='{text}', options=('a', 'b')), row)


PATTERNS = {
  'copa': (
    {'premise': 'The grass is dark.', 'choice1': 'The sun rose.', 'choice2': 'It rained.', 'question': 'cause'},
    '"the sun rose" or "it rained"? The grass is dark because [MASK].',
    ('the sun rose', 'it rained'),
  ),
  'rte': (PAIR, '"C d" ? [MASK], "A b."', ('Yes', 'No')),
  'wic': (T5['wic'][0], '"A b." / "C d." Similar sense of "b"? [MASK].', ('No', 'Yes')),
  'sst2': ({'sentence': 'A b'}, 'A b It was [MASK].', ('terrible', 'great')),
  'record': ({**T5['record'][0]}, f'{T5["record"][0]["passage"]} A [MASK] is a bird.', ('penguin', 'potato', 'pigeon')),
}


WNLI = (
  # first text, second text, the first with its pronoun, the noun
  ('A pin went through a carrot. When I pulled the pin out, it had a hole.', 'The carrot had a hole.',
   'A pin went through a carrot. When I pulled the pin out, *it* had a hole.', 'The carrot'),
  ("John couldn't see the stage with Bill in front of him because he is short.", 'John is short.',
   "John couldn't see the stage with Bill in front of him because *he* is short.", 'John'),
  ('Steve follows Fred in everything. He influences him hugely.', 'Fred influences him hugely.',
   'Steve follows Fred in everything. *He* influences him hugely.', 'Fred'),
  ('When Ann came, her mother slept. She was careful not to disturb her.', 'Ann was careful not to disturb her.',
   'When Ann came, her mother slept. *She* was careful not to disturb her.', 'Ann'),
  ('Jim called the barman and pointed at his glass.', "Jim pointed at the barman's glass.",
   'Jim called the barman and pointed at *his* glass.', 'the barman'),
  ('Tom thanked Bob when Ann helped him.', 'Ann helped Bob.', 'Tom thanked Bob when Ann helped *him* .', 'Bob'),
)  # fmt: skip


@pytest.mark.parametrize(('first', 'second', 'marked_text', 'noun'), WNLI)
def test_the_noun_of_wnli_is_found_in_its_second_text(first, second, marked_text, noun):
  form = t5.make(task='wnli')
  right, wrong, unknown = (
    write(form, {'sentence1': first, 'sentence2': second, **label}) for label in ({'label': 1}, {'label': 0}, {})
  )
  assert right.inputs == wrong.inputs == unknown.inputs == f'wsc: {marked_text}'
  assert (right.targets, wrong.targets, unknown.targets) == ((noun,), (), ())
  assert right.found == wrong.found == {'span1_text': noun}


@pytest.mark.parametrize(
  ('first', 'second'), [('Ann met Bob.', 'Ann met Bob.'), ('He sat.', 'Dogs bark.'), ('It rained.', '')]
)
def test_wnli_without_a_noun_for_a_pronoun_is_refused(first, second):
  with pytest.raises(ValueError, match='noun'):
    write(t5.make(task='wnli'), {'sentence1': first, 'sentence2': second, 'label': 1})


@pytest.mark.parametrize(
  ('task', 'name', 'word'),
  [
    ('rte', 'not_entailment', 'No'),
    ('super_glue_rte', 'entailment', 'Yes'),
    ('cb', 'neutral', 'Maybe'),
    ('cb', 'contradiction', 'No'),
    ('mnli', 'neutral', 'Maybe'),
  ],
)
def test_labels_of_patterns_may_be_names_as_in_the_published_files(task, name, word):
  found = write(patterns.make(task=task), {**PAIR, **NLI, 'label': name})
  assert (found.targets, found.options[found.label]) == ((word,), word)
  assert write(t5.make(task=task), {**PAIR, **NLI, 'label': name}).targets == (name,)
  with pytest.raises(ValueError, match="'label' holds 'other'"):
    write(patterns.make(task=task), {**PAIR, **NLI, 'label': 'other'})


@pytest.mark.parametrize(
  ('form', 'task', 'row', 'line'),
  [
    ('superglue', 'super_glue_rte', {**NLI, 'label': 1}, '{"idx": 0, "label": "not_entailment"}'),
    ('superglue', 'cb', {**NLI, 'label': 'neutral'}, '{"idx": 0, "label": "neutral"}'),
    ('superglue', 'boolq', {**T5['boolq'][0], 'idx': 0}, '{"idx": 0, "label": "true"}'),
    ('superglue', 'wic', {**T5['wic'][0], 'idx': 0}, '{"idx": 0, "label": "false"}'),
    ('superglue', 'copa', {**T5['copa'][0], 'idx': 0}, '{"idx": 0, "label": 1}'),
    ('glue', 'mnli', {**NLI, 'label': 2}, '0\tcontradiction'),
    ('glue', 'sst2', {'sentence': 'A b', 'label': 1, 'idx': 0}, '0\t1'),
  ],
)
def test_benchmarks_take_the_labels_of_patterns_and_not_their_words(form, task, row, line, tmp_path):
  small.write_rows(tmp_path / 'train.jsonl', [row])
  source = make(tmp_path, form={'name': 'patterns', 'task': task}, layout='bert', length=64)
  record = source.record(0)
  submission = {'glue': glue, 'superglue': superglue}[form].submission
  assert submission([{'label': np.int32(record['label'])}], [record]).splitlines()[-1] == line


def test_benchmarks_take_the_labels_of_data_and_not_the_words_of_a_template(tmp_path):
  small.write_rows(tmp_path / 'train.jsonl', [{**NLI, 'label': 0}])
  names = ['entailment', 'neutral', 'contradiction']
  (tmp_path / 'labels.json').write_text(json.dumps({'label': names}))
  form = {'name': 'template', 'inputs': '{premise} {hypothesis}', 'options': ('Yes', 'Maybe', 'No')}
  record = make(tmp_path, form=form).record(0)
  assert (record['names'], list(record['label_names'])) == (('Yes', 'Maybe', 'No'), names)
  assert glue.submission([{'label': np.int32(1)}], [record]).splitlines()[1] == '0\tneutral'


@pytest.mark.parametrize('task', PATTERNS)
def test_patterns_have_one_blank(task):
  row, inputs, options = PATTERNS[task]
  found = write(patterns.make(task=task), {'label': 1, **row})
  assert (found.inputs.replace(written.MARK, '[MASK]'), found.options) == (inputs, options)
  assert found.inputs.count(written.MARK) == 1
  assert found.targets == (options[found.label],)


# task of `patterns`: a row
PATTERN_ROWS = {name: {'label': 1, **row} for name, (row, _, _) in PATTERNS.items()} | {
  **{name: T5[name][0] for name in ('boolq', 'super_glue_rte', 'cb', 'mnli', 'multirc')}, 'wsc': WSC,
}  # fmt: skip


@pytest.mark.parametrize(
  ('name', 'task', 'row'),
  [
    *(('t5', task, row) for task, (row, _, _) in T5.items()),
    *(('patterns', task, row) for task, row in PATTERN_ROWS.items()),
  ],
)
def test_rows_that_are_to_be_predicted_need_what_the_form_names(name, task, row):
  """Write the same inputs with and without label or answer, in every task."""
  assert PATTERN_ROWS.keys() == patterns.TASKS.keys()
  form = build.make('data.rows.forms', {'name': name, 'task': task})
  bare = {field: row[field] for field in form.fields + form.whole}
  assert not {'label', 'answers'} & bare.keys()
  found = written.without_answers(form).write(bare)
  whole = write(form, row)
  assert (found.inputs, found.options) == (whole.inputs, whole.options)
  assert (found.targets, found.label) == ((), -1)
  assert found.value == (None if whole.value is None else -1)


def test_rows_that_are_trained_on_need_their_answers():
  for form, field in ((t5.make(task='stsb'), 'label'), (t5.make(task='record'), 'answers'),
                      (t5.make(task='squad'), 'answers'), (patterns.make(task='record'), 'answers')):  # fmt: skip
    row = {**PAIR, **T5['record'][0], **T5['squad'][0]}
    with pytest.raises(ValueError, match=f"no field '{field}'"):
      write(form, {name: value for name, value in row.items() if name != field})


def test_prompts_of_gpt3():
  row = {'premise': 'My body cast a shadow.', 'choice1': 'The sun rose.', 'choice2': 'It rained.', 'label': 0}
  found = write(prompts.make(task='copa'), {**row, 'question': 'cause'})
  assert found == written.Written(
    'My body cast a shadow because', ('the sun rose.',), ('the sun rose.', 'it rained.'), 0
  )
  assert write(prompts.make(task='copa'), {**row, 'question': 'effect'}).inputs == 'My body cast a shadow so'
  found = write(prompts.make(task='lambada'), {'passage': 'She whispered to him'})
  assert (found.inputs, found.targets, found.options) == ('She whispered to', ('him',), ())
  row = {'activity_label': 'Ice', 'context': 'A man [step] writes.', 'endings': ['go [title] on', 'stop'], 'label': 1}
  found = write(prompts.make(task='hellaswag'), row)
  assert (found.inputs, found.options) == ('Ice: A man writes.', ('go. on', 'stop'))
  found = write(prompts.make(task='piqa'), {'goal': 'Open a jar', 'sol1': 'Hit it.', 'sol2': 'Turn it.', 'label': 1})
  assert (found.inputs, found.options, found.label) == ('Question: Open a jar\nAnswer:', ('Hit it.', 'Turn it.'), 1)


def test_prompts_of_gpt2():
  row = {'sentences': ['A dog came .', 'It sat .'], 'question': 'She gave the XXXXX a bone .', 'answer': 'dog'}
  found = write(prompts.make(task='cbt'), {**row, 'options': ['cat', 'dog']})
  assert found.inputs == 'A dog came . It sat . She gave the'
  assert found.options == ('cat a bone .', 'dog a bone .') and found.label == 1 and found.targets == found.options[1:]
  with pytest.raises(ValueError, match='XXXXX'):
    write(prompts.make(task='cbt'), {**row, 'options': ['cat'], 'question': 'She ran .'})
  found = write(prompts.make(task='de_en'), {'de': 'ein Hund ', 'en': 'a dog'})
  assert (found.inputs, found.targets) == ('ein Hund =', ('a dog',))
  row = {'context': 'A dog runs.', 'question': 'Who runs?', 'answers': {'text': ['A dog', 'dog', 'A dog']}}
  found = write(prompts.make(task='question'), row)
  assert (found.inputs, found.targets) == ('A dog runs.\nQ: Who runs?\nA:', ('A dog', 'dog'))


def test_prompts_of_gpt():
  found = write(prompts.make(task='sst2'), {'sentence': 'so good ', 'label': 1})
  assert found == written.Written('so good very', ('positive',), ('negative', 'positive'), 1)
  assert write(prompts.make(task='cola'), {'sentence': 'They drank.', 'label': 0})[:2] == ('They', ('drank.',))
  row = {'article': 'One.', 'question': 'Who?', 'options': ['Ann', 'Bea'], 'answer': 'B'}
  assert write(prompts.make(task='race'), row) == written.Written('One. Who?', ('Bea',), ('Ann', 'Bea'), 1)
  with pytest.raises(ValueError, match="'sentence'"):
    write(prompts.make(task='cola'), {'sentence': 'Drank'})


WET = 'The cup fell off, as it was wet.'
TWO = {'option1': 'The cup', 'option2': 'Ann'}
SCHEMAS = {
  'winograd': {'text': WET, **TWO, 'pronoun_start': 21, 'pronoun_end': 23, 'label': 0},
  'dpr': {'sentence': WET, 'pronoun': 'it', 'candidates': ['The cup', 'Ann'], 'label': 0},
  'winogrande': {'sentence': WET.replace('it', '_'), **TWO, 'answer': '1'},
}


@pytest.mark.parametrize('task', SCHEMAS)
def test_a_referent_stands_in_place_of_the_pronoun(task):
  found = write(prompts.make(task=task), SCHEMAS[task])
  options = ('the cup was wet.', 'Ann was wet.')
  leads = ('the cup', 'Ann')
  assert found == written.Written('The cup fell off, as', options[:1], options, 0, leads=leads)
  assert write(prompts.make(task=task, compare='all'), SCHEMAS[task]) == found._replace(leads=())


def test_a_referent_that_opens_a_sentence_has_a_large_letter():
  row = {'text': 'The cup hit the lamp. It broke.', 'option1': 'The cup', 'option2': 'the lamp', 'label': 1}
  found = write(prompts.make(task='winograd'), {**row, 'pronoun_start': 22, 'pronoun_end': 24})
  assert found.options == ('The cup broke.', 'The lamp broke.')
  blank = {**row, 'sentence': 'The cup hit the lamp. _ broke.', 'answer': '2'}
  assert write(prompts.make(task='winogrande'), blank).options == found.options


def test_the_first_place_of_a_pronoun_is_resolved():
  """Follow the authors of the data for a pronoun that occurs twice."""
  row = {'sentence': 'Ann met Bea when she left, since she was late.', 'pronoun': 'she', 'candidates': ['Ann', 'Bea']}
  found = write(prompts.make(task='dpr'), {**row, 'label': 1})
  assert (found.inputs, found.targets) == ('Ann met Bea when', ('Bea left, since she was late.',))
  assert write(t5.make(task='dpr'), {**row, 'label': 1}).inputs.startswith('wsc: Ann met Bea when *she* left')


def test_schemas_that_cannot_be_written_are_said():
  with pytest.raises(ValueError, match="'pronoun' is 'she'"):
    write(prompts.make(task='dpr'), {**SCHEMAS['dpr'], 'pronoun': 'she'})
  with pytest.raises(ValueError, match='pronoun'):
    write(prompts.make(task='winogrande'), {**SCHEMAS['winogrande'], 'sentence': '_ was wet.'})
  assert write(prompts.make(task='winogrande'), {**SCHEMAS['winogrande'], 'answer': ''}).label == -1
  with pytest.raises(ValueError, match=r"form\.compare='some'.*rest, all"):
    prompts.make(task='dpr', compare='some')


# The source ----------------------------------------------------------------------------------------------------------

ROWS = [
  {'text': 'a b c d e f g h', 'more': 'x', 'refs': ['one two', 'three'], 'label': 0},
  {'text': 'i j', 'more': 'y z', 'refs': ['four'], 'label': 1},
  {'text': 'k', 'more': 'w', 'refs': [], 'label': -1},
  {'text': 'l m n', 'more': 'v', 'refs': ['five six seven eight nine'], 'label': 0},
]


@pytest.fixture
def folder(tmp_path):
  small.write_rows(tmp_path / 'train.jsonl', ROWS)
  small.write_rows(tmp_path / 'validation.jsonl', ROWS[:2])
  return tmp_path


def make(folder, *, vocab=None, **settings):
  settings = {
    'form': {'name': 'template', 'inputs': 'read {text}', 'target': '{refs}'},
    'length': 8, 'target_length': 4, 'batch_size': 2, 'seed': 0, 'layout': 'text', 'shuffle': False, **settings,
  }  # fmt: skip
  return text_to_text.make(vocab=vocab or WordVocab(), path=str(folder), cache=str(folder), **settings)


def whole(source, vocab, key='tokens'):
  """Return the texts of all examples, special tokens in brackets."""
  found = []
  for batch in source.once():
    for row, weight in enumerate(batch['row_weight']):
      real = batch[key.replace('tokens', 'segment_ids')][row] > 0
      if weight:
        found.append(vocab.decode(batch[key][row][real]))
  return found


def test_rows_have_inputs_and_targets(folder):
  vocab = WordVocab()
  source = make(folder, vocab=vocab)
  assert source.rows == 3  # one row has no right answer
  assert whole(source, vocab) == ['read a b c d e f </s>', 'read i j </s>', 'read l m n </s>']
  assert whole(source, vocab, 'target_tokens') == ['one two </s>', 'four </s>', 'five six seven </s>']
  assert source.record(0)['references'] == ['one two', 'three']
  assert source.record(0)['inputs'] == 'read a b c d e f g h'
  assert source.record(2)['row'] == ROWS[3]
  first = next(source.once())
  assert (first['tokens'][1, 4:] == small.PAD).all()
  assert first['option_tokens'].shape == (2, 1, 4)


def test_each_right_answer_has_a_row(folder):
  vocab = WordVocab()
  source = make(folder, vocab=vocab, per_target=True)
  assert whole(source, vocab, 'target_tokens') == ['one two </s>', 'three </s>', 'four </s>', 'five six seven </s>']
  assert [source.record(row)['row']['text'] for row in range(4)] == [ROWS[n]['text'] for n in (0, 0, 1, 3)]


def test_rows_without_an_answer_are_kept_to_be_predicted(folder):
  assert not make(folder).unlabelled
  source = make(folder, keep_unlabelled=True)
  assert source.rows == 4 and source.unlabelled
  assert source.record(2)['references'] is None
  batches = list(source.once())
  some = np.concatenate([batch['target_segment_ids'].any(axis=1) for batch in batches])
  assert some.tolist() == [True, True, False, True]  # not even an end token, which would count in the loss
  assert not batches[1]['target_tokens'][0].any()


def test_options_fill_up_and_have_labels(folder):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text}', 'options': ('good', 'very bad', '{more}')}
  source = make(folder, vocab=vocab, form=form, layout='bare', gap=' ')
  batch = next(source.once())
  assert batch['label'].tolist() == [0, 1]
  shown = [[vocab.decode(ids[ids > small.PAD]) for ids in row] for row in batch['option_tokens']]
  assert shown == [['good', 'very bad', 'x'], ['good', 'very bad', 'y z']]
  assert whole(source, vocab, 'target_tokens') == ['good', 'very bad', 'good']
  listed = {'name': 'template', 'inputs': '{text}', 'options': ('{refs}', 'other')}
  batch = next(make(folder, vocab=vocab, form=listed, layout='bare', split='train[:2]').once())
  assert batch['option_segment_ids'].sum(axis=2).tolist() == [[2, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
  ('settings', 'wanted'),
  [  # rows have 8, 4 and 5 tokens of inputs, 3, 2 and 4 of targets
    ({}, [(8, 4), (8, 4), (8, 4)]),
    ({'buckets': (4, 6)}, [(8, 4), (4, 4), (6, 4)]),
    ({'buckets': (4, 6), 'target_buckets': (2, 3)}, [(8, 4), (4, 2), (8, 4)]),
    ({'buckets': (3, 6), 'target_buckets': (2, 3)}, [(8, 4), (6, 3), (8, 4)]),
  ],
)
def test_a_batch_has_the_first_lengths_that_hold_its_rows(folder, settings, wanted):
  vocab = WordVocab()
  source, padded = make(folder, vocab=vocab, batch_size=1, **settings), make(folder, vocab=vocab, batch_size=1)
  read = source.read(0)
  trained = [next(read) for _ in wanted]
  shapes = [(batch['tokens'].shape[1], batch['target_tokens'].shape[1]) for batch in trained]
  assert sorted(shapes) == sorted(wanted)
  assert all(batch['option_tokens'].shape[2] == size for batch, (_, size) in zip(trained, shapes, strict=True))
  judged = [(batch['tokens'].shape[1], batch['target_tokens'].shape[1]) for batch in source.once()]
  assert judged == [(width, 4) for width, _ in wanted]  # a text that is written may be longer than the right one
  for key in ('tokens', 'target_tokens'):
    assert whole(source, vocab, key) == whole(padded, vocab, key)
  assert source.spec == padded.spec  # that of the longest
  assert (source.digest == padded.digest) == (not settings)


def test_training_reads_rows_of_like_length_together_and_each_once_an_epoch(folder):
  rows = [{'text': 'a ' * size, 'refs': ['b ' * (size // 2 + 1)]} for size in (1, 2, 3, 9, 10, 11, 2, 12)]
  small.write_rows(folder / 'train.jsonl', rows)
  settings = dict(length=16, target_length=8, buckets=(6,), target_buckets=(4,), shuffle=True)
  source = make(folder, **settings)
  read = source.read(0)
  orders = set()
  for _ in range(3):
    batches = [next(read) for _ in range(source.steps_per_epoch)]
    assert sorted(row for batch in batches for row in batch['row_id']) == list(range(8))
    assert sorted(batch['tokens'].shape[1] for batch in batches) == [6, 6, 16, 16]
    orders.add(tuple(int(row) for batch in batches for row in batch['row_id']))
  assert len(orders) == 3
  parts = [make(folder, host=host, hosts=2, **settings).read(5) for host in range(2)]
  alone = make(folder, **settings).read(5)
  for _ in range(4):
    one, *halves = (next(each) for each in (alone, *parts))
    assert all(np.array_equal(one[key], np.concatenate([half[key] for half in halves])) for key in one)


def test_options_decide_the_lengths_of_a_batch(folder):
  form = {'name': 'template', 'inputs': '{text}', 'options': ('good', 'very bad', '{more}')}
  buckets = dict(buckets=(2, 4), target_buckets=(1, 2))
  source = make(folder, form=form, layout='bare', batch_size=1, **buckets)
  shapes = [(*batch['tokens'].shape[1:], *batch['option_tokens'].shape[1:]) for batch in source.once()]
  assert shapes == [(8, 3, 4), (4, 3, 2), (4, 3, 2)]  # "very bad" has two tokens


@pytest.mark.parametrize(
  ('keep', 'expected'), [('start', 'read a b c d e f </s>'), ('end', 'b c d e f g h </s>'), ('fields', '')]
)
def test_inputs_that_are_too_long_keep_what_the_form_says(folder, keep, expected):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': 'read {text}', 'target': '{more}', 'keep': keep}
  found = whole(make(folder, vocab=vocab, form=form), vocab)[0]
  if keep == 'fields':  # characters are cut until it fits
    assert found.startswith('read a b c') and found.endswith('</s>') and len(found.split()) <= 8
  else:
    assert found == expected


def test_a_blank_survives_the_cut(folder):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} was [MASK] !', 'options': ('good', 'bad')}
  found = whole(make(folder, vocab=vocab, form=form, layout='bert'), vocab)
  assert found[0].startswith('[CLS] a b') and found[0].endswith('was [MASK] ! [SEP]')
  assert len(found[0].split()) <= 8
  assert found[1] == '[CLS] i j was [MASK] ! [SEP]'
  with pytest.raises(ValueError, match=r'row 0 of .*length=5'):
    make(folder, vocab=vocab, form={**form, 'inputs': '{text} was surely [MASK] !'}, layout='bert', length=5)


@pytest.mark.parametrize('sign', ['\ue000', '[MASK]'])
def test_a_sign_in_a_field_is_no_blank(folder, sign):
  """Treat icons of fonts and blanks of other libraries as text."""
  small.write_rows(folder / 'train.jsonl', [{'text': f'a {sign} b', 'label': 0}])
  form = {'name': 'template', 'inputs': '{text} was [MASK] !', 'options': ('good', 'bad')}
  vocab = WordVocab()
  (row,) = whole(make(folder, vocab=vocab, form=form, layout='bert', length=16), vocab)
  assert row.split().count('[MASK]') == 1 and row.endswith('was [MASK] ! [SEP]')


def test_what_a_pattern_makes_of_fields_survives_the_cut(folder):
  """Keep COPA's 'question', which gives "because", and ReCoRD's entities.

  The entities are options and no text.
  """
  vocab = WordVocab()
  long = ' '.join('abcdefgh')
  copa = {'premise': f'It {long}', 'choice1': f'One {long}', 'choice2': 'Two', 'question': 'cause', 'label': 0}
  small.write_rows(folder / 'train.jsonl', [copa])
  settings = {'layout': 'bert', 'gap': ' ', 'target_length': 16}
  form = {'name': 'patterns', 'task': 'copa'}
  (found,) = whole(make(folder, vocab=vocab, form=form, length=24, **settings), vocab)
  assert found == '[CLS] " one a " or " two " ? It a b c d e f g h because [MASK] . [SEP]'
  record = {'passage': long, 'query': 'Is @placeholder it', 'entities': ['x y', 'z'], 'answers': ['z']}
  small.write_rows(folder / 'train.jsonl', [record])
  source = make(folder, vocab=vocab, form={**form, 'task': 'record'}, length=8, **settings)
  assert whole(source, vocab) == ['[CLS] a b c Is [MASK] it [SEP]']
  assert source.record(0)['options'] == ('x y', 'z')


def test_the_letters_of_a_mask_in_a_text_are_no_blank(folder):
  vocab = WordVocab()
  small.write_rows(folder / 'train.jsonl', [{'text': 'a [MASK] b', 'label': 0}])
  form = {'name': 'template', 'inputs': '{text} [MASK]', 'options': ('good', 'bad')}
  assert whole(make(folder, vocab=vocab, form=form, length=16), vocab) == ['a [ MASK ] b [MASK] </s>']


def test_a_blank_takes_the_space_before_it_along(folder):
  """Compare with the tokenizer of a pretrained checkpoint.

  Its mask token includes the space before it.
  """
  vocab = byte_bpe.train(['it was great . it was a film'] * 20, size=300, specials='roberta')
  small.write_rows(folder / 'train.jsonl', [{'text': 'a film', 'label': 0}])
  form = {'name': 'template', 'inputs': '{text} It was [MASK].', 'options': ('great', 'bad')}
  (batch,) = make(folder, vocab=vocab, form=form, layout='bare', gap=' ', length=32, target_length=8).once()
  real = batch['tokens'][0][batch['segment_ids'][0] > 0]
  assert real.tolist() == vocab.encode('a film It was <mask>.', specials=True)
  assert vocab.decode(real, specials=True) == 'a film It was<mask>.'


def test_an_option_behind_a_gap_has_the_tokens_that_it_has_within_a_text(folder):
  pytest.importorskip('sentencepiece')
  vocab = small.llama_vocab(['it was great . it was a film'] * 20)
  assert vocab.encode('it great') == [*vocab.encode('it'), *vocab.encode(' great')[1:]]
  small.write_rows(folder / 'train.jsonl', [{'text': 'it', 'label': 0}])
  form = {'name': 'template', 'inputs': '{text}', 'options': ('great', 'a film')}
  (batch,) = make(folder, vocab=vocab, form=form, layout='bare', gap=' ', length=32, target_length=16).once()
  read = batch['tokens'][0][batch['segment_ids'][0] > 0].tolist()
  for option, text in enumerate(form['options']):
    own = batch['option_tokens'][0, option][batch['option_segment_ids'][0, option] > 0].tolist()
    assert [*read, *own] == vocab.encode(f'it {text}')


def test_demonstrations_stand_before_a_row(folder):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} :', 'options': ('good', 'bad')}
  given = {'form': form, 'layout': 'bare', 'gap': ' ', 'length': 40, 'split': 'validation'}
  alone = whole(make(folder, vocab=vocab, **given), vocab)
  assert alone == ['a b c d e f g h :', 'i j :']
  shots = {'count': 2, 'separator': ' | ', 'instruction': 'say'}
  source = make(folder, vocab=vocab, shots=shots, **given)
  solved = {'a b c d e f g h : good', 'i j : bad', 'l m n : good'}
  for found, own in zip(whole(source, vocab), alone, strict=True):
    head, *parts = found.split(' | ')
    assert head == 'say' and parts[-1] == own
    assert len(set(parts[:-1])) == 2 and set(parts[:-1]) <= solved
  again, other = (whole(make(folder, vocab=vocab, shots={**shots, 'seed': seed}, **given), vocab) for seed in (0, 3))
  assert again == whole(source, vocab) != other


def test_the_blank_of_a_demonstration_is_filled(folder):
  """Check that the only mask is that of the example itself."""
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} was [MASK] !', 'options': ('good', 'bad')}
  shots = {'count': 1, 'split': 'train', 'separator': ' | '}
  source = make(folder, vocab=vocab, form=form, layout='bert', length=40, split='validation', gap=' ', shots=shots)
  for text in whole(source, vocab):
    demonstration, own = text.split(' | ')
    assert demonstration.endswith(('was good !', 'was bad !'))
    assert own.endswith('was [MASK] ! [SEP]') and text.count('[MASK]') == 1


def test_draws_repeat_the_rows_with_other_demonstrations(folder):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} :', 'options': ('good', 'bad')}
  shots = {'count': 1, 'draws': 6, 'separator': ' | '}
  source = make(folder, vocab=vocab, form=form, layout='bare', length=40, split='validation', shots=shots)
  assert source.rows == 12
  assert [source.record(row)['draw'] for row in range(12)] == [n // 2 for n in range(12)]
  texts = whole(source, vocab)
  assert len(set(texts[::2])) > 1  # the first row
  assert [text.split(' | ')[-1] for text in texts] == ['a b c d e f g h :', 'i j :'] * 6


def test_a_row_is_not_its_own_demonstration(folder):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} :', 'options': ('good', 'bad')}
  source = make(folder, vocab=vocab, form=form, layout='bare', length=40, shots={'count': 2, 'separator': ' | '})
  for text in whole(source, vocab):
    *before, own = text.split(' | ')
    assert len(before) == 2 and all(not part.startswith(own) for part in before)
  with pytest.raises(ValueError, match=r'shots\.count=4.*4 rows'):
    make(folder, form=form, layout='bare', length=40, shots={'count': 4})
  with pytest.raises(ValueError, match=r'shots\.count=3.*target'):
    make(folder, form=form, layout='bare', length=40, shots={'count': 3})


@pytest.mark.parametrize(
  ('split', 'pool'), [('train[:2]', 'train'), ('train', 'train[:3]'), ('train[2:]', 'train[1:]')]
)
def test_a_row_is_not_its_own_demonstration_where_slices_overlap(folder, split, pool):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} :', 'options': ('good', 'bad')}
  shots = {'count': 1, 'split': pool, 'separator': ' | ', 'draws': 20}
  source = make(folder, vocab=vocab, form=form, layout='bare', length=40, split=split, shots=shots)
  for text in whole(source, vocab):
    before, own = text.split(' | ')
    assert not before.startswith(own)


@pytest.mark.parametrize('split', ['validation', 'train'])
def test_bad_rows_are_no_demonstrations(split, tmp_path, caplog):
  good = [{'text': f'row {number}', 'label': number % 2} for number in range(1500)]
  bad = {'text': 'row', 'label': 7}
  small.write_rows(tmp_path / 'train.jsonl', [*good[:700], bad, *good[700:]])
  small.write_rows(tmp_path / 'validation.jsonl', good[:3])
  form = {'name': 'template', 'inputs': '{text} :', 'options': ('good', 'bad')}
  shots = {'count': 2, 'separator': ' | '}
  asked, place = {'form': form, 'shots': shots, 'split': split}, {'path': str(tmp_path), 'cache': str(tmp_path)}
  message, calls = r"train\.jsonl, line 701: .*'label' holds 7.*on_bad_row='skip'", []
  with pytest.raises(ValueError, match=message):
    make(tmp_path, vocab=WordVocab(each=calls.append), **asked)
  with pytest.raises(ValueError, match=message):
    text_to_text.look(**asked, **place)
  assert not calls
  with caplog.at_level('WARNING'):
    text_to_text.look(**asked, **place, on_bad_row='skip')
  assert caplog.text.count('1 of 1,501 rows') == 1 and 'line 701' in caplog.text
  sampler = demonstrations.Sampler(
    demonstrations.Shots(count=1499),
    build.make('data.rows.forms', form),
    sources.open_source(str(tmp_path), cache=str(tmp_path)),
    gap=' ',
    same_split=True,
    left_out=(700,),
  )
  assert sorted(set(sampler.sample(3, 0))) == sorted(
    f'row {n} : {("good", "bad")[n % 2]}' for n in range(1500) if n != 3
  )


def test_draws_are_those_of_the_seed(folder):
  """Check that samples are the same as before bad rows could be skipped."""
  records = sources.open_source(str(folder), cache=str(folder))
  form = template.make(inputs='{text}', options=('good', 'bad'))
  sampler = demonstrations.Sampler(demonstrations.Shots(count=2, seed=5), form, records, gap=' ', same_split=False)
  first, second, third = ['a b c d e f g h good'], ['i j bad'], ['l m n good']
  assert [sampler.sample(row, 0) for row in range(3)] == [second + third, third + second, third + first]


def test_demonstrations_without_room_are_left_out(folder):
  vocab = WordVocab()
  form = {'name': 'template', 'inputs': '{text} :', 'options': ('good', 'bad'), 'keep': 'end'}
  given = {'form': form, 'layout': 'bare', 'split': 'validation', 'shots': {'count': 3, 'separator': ' | '}}
  for length in (9, 12, 16, 40):
    first, second = whole(make(folder, vocab=vocab, length=length, **given), vocab)
    assert first.endswith('a b c d e f g h :') and second.endswith('i j :')
    assert len(first.split()) <= length
    assert all(part.split(' : ')[-1] in ('good', 'bad') for part in second.split(' | ')[:-1])


def test_hosts_and_draws_read_the_parts_of_one_batch(folder):
  vocab = WordVocab()
  both = [make(folder, vocab=vocab, host=host, hosts=2) for host in range(2)]
  alone = make(folder, vocab=vocab)
  assert {each.digest for each in both} == {alone.digest}
  for one, *parts in zip(alone.once(), *(each.once() for each in both), strict=True):
    for key, value in one.items():
      assert np.array_equal(value, np.concatenate([part[key] for part in parts])), key


def test_bad_rows_are_named_before_anything_is_tokenised(folder):
  with open(folder / 'train.jsonl', 'a', encoding='utf-8') as file:
    file.write(json.dumps({'text': 'a', 'refs': {'a': 1}}) + '\n')
  calls = []
  with pytest.raises(ValueError, match=r"train\.jsonl, line 5: .*'refs'.*\{'a': 1\}"):
    make(folder, vocab=WordVocab(each=calls.append))
  assert not calls
  with pytest.raises(ValueError, match='line 5'):
    text_to_text.look(
      path=str(folder), cache=str(folder), form={'name': 'template', 'inputs': '{text}', 'target': '{refs}'}
    )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'form': {'name': 'template', 'inputs': '{text}'}}, 'form.target.*form.options'),
    ({'form': {'name': 'template', 'inputs': '[MASK] [MASK]', 'target': 'x'}}, '2 blanks'),
    ({'form': {'name': 't5', 'task': 'mnli'}}, "no field 'hypothesis'"),
    ({'length': 1}, 'length=1 .*layout'),
    ({'split': 'test'}, "'test'"),
    ({'buckets': (4, 6), 'target_buckets': (2,)}, 'target_buckets'),
    ({'buckets': (6, 4)}, r'length=8.*target_length=4.*\(6, 4\).*\(4, 4\)'),
    ({'buckets': (4,), 'target_buckets': (5,)}, r'\(4, 5\).*\(8, 4\)'),
    ({'buckets': (9,)}, r'\(9, 4\).*\(8, 4\)'),
    (
      {'form': {'name': 'template', 'inputs': '{text}', 'target': '{label}', 'keep': 'all'}},
      r"form\.keep.*'start', 'end', 'fields'",
    ),
  ],
)
def test_what_cannot_be_is_said(folder, changes, message):
  with pytest.raises((ValueError, FileNotFoundError, ConfigError), match=message):
    make(folder, **changes)


@pytest.mark.parametrize(
  ('name', 'form'),
  [
    ('super_glue_copa', {'name': 'prompts', 'task': 'copa'}),
    ('super_glue_copa', {'name': 'patterns', 'task': 'copa'}),
    ('hellaswag', {'name': 'prompts', 'task': 'hellaswag'}),
    ('glue_mnli', {'name': 't5', 'task': 'mnli'}),
    ('scitldr_abstract', {'name': 'template', 'inputs': 'summarize: {source}', 'target': '{target}'}),
  ],
)
def test_real_rows_can_be_written(name, form):
  """Write the first 20 rows of a data set that developers have."""
  path = conftest.SHARED_DATA / name
  if not path.is_dir():
    pytest.skip(f'{path} is not there')
  split = 'validation_matched[:20]' if name == 'glue_mnli' else 'validation[:20]'
  labels = text_to_text.look(path=str(path), split=split, form=form)
  assert labels.names == build.make('data.rows.forms', form).options


def test_a_second_vocabulary_reads_and_the_first_one_writes(tmp_path):
  """Check the vocabulary of each side.

  Inputs, their special tokens, padding and blanks use the second; targets and options use the first.
  """

  class Shifted(small.NumberVocab):
    pad_id, mask_id = 7, 8

    def encode(self, text):
      return [token + 100 for token in super().encode(text)]

  second = Shifted()
  second.digest, second.eos_id = 'shifted', 9
  path = small.write_rows(tmp_path / 'train.jsonl', [{'a': '1 2', 'b': '3'}, {'a': '4', 'b': '5 6'}])
  form = {'name': 'template', 'inputs': '{a} [MASK]', 'target': '{b}'}
  settings = {'path': path, 'form': form, 'length': 6, 'batch_size': 2, 'seed': 0, 'layout': 'text', 'shuffle': False}
  made = [
    text_to_text.make(vocab=small.NumberVocab(), second_vocab=one, cache=str(tmp_path), **settings)
    for one in (None, second)
  ]
  plain, other = (next(source.once()) for source in made)
  first = len(small.SPECIAL)
  assert other['tokens'].tolist() == [[first + 101, first + 102, 8, 9, 7, 7], [first + 104, 8, 9, 7, 7, 7]]
  np.testing.assert_array_equal(other['target_tokens'], plain['target_tokens'])
  np.testing.assert_array_equal(other['option_tokens'], plain['option_tokens'])
  assert made[0].digest != made[1].digest

  read = text_to_text.make(vocab=second, second_vocab=small.NumberVocab(), second='targets', **settings)
  (turned,) = read.once()
  assert all((turned[name] == other[name]).all() for name in text_to_text.GIVES)
  assert read.digest == made[1].digest  # the same rows
  with pytest.raises(ValueError, match=r"data\.second='target'.*inputs, targets"):
    text_to_text.make(vocab=second, second='target', **settings)


def test_rows_without_what_is_to_be_written_can_be_predicted(tmp_path):
  (tmp_path / 'train.jsonl').write_text('{"doc": "a b"}\n{"doc": "c"}\n')
  form = {'name': 'template', 'inputs': 'sum: {doc}', 'target': 'so: {summary}'}
  asked = {'path': str(tmp_path), 'form': form, 'cache': str(tmp_path / 'cache')}
  assert text_to_text.look(**asked, keep_unlabelled=True).unlabelled
  with pytest.raises(ValueError, match=r"line 1: .*no field 'summary'"):
    text_to_text.look(**asked)


def test_numbers_of_a_table_are_written_as_their_cells_are(tmp_path):
  (tmp_path / 'train.csv').write_text('text,price\na,5.10\nb,1e3\nc,3.14\n')
  form = {'name': 'template', 'inputs': '{text} costs {price}', 'target': '{price}'}
  source = text_to_text.make(
    vocab=WordVocab(), path=str(tmp_path), form=form, length=8, batch_size=3, seed=0, cache=str(tmp_path / 'cache')
  )
  assert [source.record(row)['inputs'] for row in range(3)] == ['a costs 5.10', 'b costs 1e3', 'c costs 3.14']
  assert [source.record(row)['references'] for row in range(3)] == [['5.10'], ['1e3'], ['3.14']]


def test_the_number_of_a_class_may_be_written_as_a_real_one():
  assert written.label_of({'label': 1.0}, 'label', ('no', 'yes')) == 1
  assert written.label_of({'label': -1.0}, 'label', ('no', 'yes')) == -1
  with pytest.raises(ValueError, match=r'holds 0\.5'):
    written.label_of({'label': 0.5}, 'label', ('no', 'yes'))


def test_the_number_of_a_table_may_be_the_text_of_an_option(folder):
  form = {'name': 'template', 'inputs': '{question}', 'options': ('{a}', '{b}', '{c}'), 'label': 'answer'}
  (folder / 'train.csv').write_text('question,a,b,c,answer\nhow many,7,8,9,8\nhow many,5,6,3,3\n')
  (folder / 'train.jsonl').unlink()
  assert [source.record(row)['label'] for source in [make(folder, form=form)] for row in range(2)] == [1, 2]
  (folder / 'train.csv').write_text('question,a,b,c,answer\nhow many,1,2,3,1\n')
  with pytest.raises(ValueError, match=r"'answer' holds 1.*option 0"):
    make(folder, form=form)
  number = csv_number('2')
  assert written.label_of({'label': number}, 'label', ('a', 'b', 'c')) == 2
  assert written.label_of({'label': number}, 'label', ('x', 'y'), names=('1', '2')) == 1  # as of Winogrande


def csv_number(spelling):
  number = Whole(spelling)
  number.spelling = spelling
  return number


def test_an_empty_cell_is_no_label():
  assert written.label_of({'label': ''}, 'label', ('no', 'yes')) == -1
  assert written.label_of({'label': ''}, 'label', ('', 'yes')) == 0
