# ruff: noqa: E501
"""The program parser: rounds of nested loops and bytes of transfers by hand, and programs compiled by jax."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from plm_jax.noise import cuts, runs
from plm_jax.planning import hlo

# three layers, each of which has four chunks: gathers 12 times, adds 3 times before and once after
NESTED = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,64]{1,0})->f32[8,64]{1,0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(f32[] %a, f32[] %b)
}

%inner_body (p: (s32[], bf16[16,64])) -> (s32[], bf16[16,64]) {
  %p = (s32[], bf16[16,64]{1,0}) parameter(0)
  %x = bf16[16,64]{1,0:T(8,128)(2,1)} get-tuple-element((s32[], bf16[16,64]{1,0}) %p), index=1
  %gather = bf16[64,64]{1,0:T(8,128)(2,1)} all-gather(%x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, metadata={op_name="jit(step)/head"}
  ROOT %t = (s32[], bf16[16,64]{1,0}) tuple(%i, %x)
}

%inner_condition (p: (s32[], bf16[16,64])) -> pred[] {
  %p = (s32[], bf16[16,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element((s32[], bf16[16,64]{1,0}) %p), index=0
  %limit = s32[]{:T(128)} constant(4)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], bf16[16,64])) -> (s32[], bf16[16,64]) {
  %p = (s32[], bf16[16,64]{1,0}) parameter(0)
  %y = f32[32]{0} fusion(%p), kind=kLoop, calls=%fused
  %reduce = f32[32]{0} all-reduce(%y), channel_id=2, to_apply=%add, metadata={op_name="jit(step)/norm"}
  ROOT %loop = (s32[], /*index=1*/bf16[16,64]{1,0}) while((s32[], bf16[16,64]{1,0}) %p), condition=%inner_condition, body=%inner_body
}

%outer_condition (p: (s32[], bf16[16,64])) -> pred[] {
  %p = (s32[], bf16[16,64]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%unused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %never = f32[1024]{0} all-gather(%p), channel_id=9, dimensions={0}
}

ENTRY %main (x: f32[8,64]) -> f32[8,64] {
  %x = f32[8,64]{1,0} parameter(0)
  %scatter = f32[2,64]{1,0} reduce-scatter(%x), channel_id=3, dimensions={0}, to_apply=%add
  %start = (bf16[4]{0}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%z), channel_id=4, source_target_pairs={{0,1},{1,0}}
  %done = bf16[4]{0} collective-permute-done((bf16[4]{0}, bf16[4]{0}, u32[], u32[]) %start)
  ROOT %loop = (s32[], bf16[16,64]{1,0}) while((s32[], bf16[16,64]{1,0}) %t), condition=%outer_condition, body=%outer_body, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def test_nested_loops_are_multiplied_out():
  found = {one.kind: one for one in hlo.collectives(NESTED)}
  assert {kind: one.runs for kind, one in found.items()} == {
    'all-gather': 3 * 4, 'all-reduce': 3, 'reduce-scatter': 1, 'collective-permute': 1,
  }  # fmt: skip
  assert {kind: one.bytes for kind, one in found.items()} == {
    'all-gather': 64 * 64 * 2,  # what comes out
    'all-reduce': 32 * 4,
    'reduce-scatter': 8 * 64 * 4,  # what goes in
    'collective-permute': 4 * 2,
  }
  assert found['all-gather'].source == 'jit(step)/head'
  assert hlo.collectives(NESTED)[0] == found['all-gather']
  assert hlo.by_kind(hlo.collectives(NESTED))['all-gather'] == (1, 12, 12 * 64 * 64 * 2)


SILENT = """HloModule jit_step
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %rows = f32[8]{0} gather(%p, %i), offset_dims={0}
}
%outer (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %inner = f32[8]{0} fusion(%p), kind=kCustom, calls=%fused
}
%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %rows = f32[8]{0} fusion(%p), kind=kCustom, calls=%outer
  %kernel = f32[8]{0} custom-call(%p), custom_call_target="tpu_custom_call"
  %sum = f32[8]{0} all-reduce-start(%p), channel_id=1, to_apply=%add
  ROOT %done = f32[8]{0} all-reduce-done(%sum)
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %known = f32[8]{0} fusion(%x), kind=kCustom, calls=%outer, backend_config={"estimated_cycles":"7"}
  %order = f32[8]{0} sort(%x), dimensions={0}
  ROOT %loop = f32[8]{0} while(%x), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def test_what_has_no_cycles_is_counted():
  assert hlo.cycles(SILENT) == 7
  assert list(hlo.without_cycles(SILENT).items()) == [('kernels', 3), ('transfers', 3), ('gathers', 3), ('sorts', 1)]


def test_a_counter_that_moves_by_two_has_half_the_rounds():
  body = '%inner_body (p: (s32[], bf16[16,64])) -> (s32[], bf16[16,64]) {'
  steps = NESTED.replace(
    f'{body}\n', f'{body}\n  %two = s32[]{{:T(128)}} constant(2)\n  %i = s32[]{{:T(128)}} add(%before, %two)\n'
  )
  assert {one.kind: one.runs for one in hlo.collectives(steps)}['all-gather'] == 3 * 2
  odd = steps.replace('%two = s32[]{:T(128)} constant(2)', '%two = s32[]{:T(128)} constant(3)')
  assert {one.kind: one.runs for one in hlo.collectives(odd)}['all-gather'] == 3 * 2  # 0, 3
  unsaid = steps.replace('add(%before, %two)', 'fusion(%before, %two), kind=kLoop, calls=%fused')
  assert {one.kind: one.runs for one in hlo.collectives(unsaid)}['all-gather'] == 3 * 4


def test_a_transfer_that_overlaps_a_loop_counts_once():
  twice = NESTED.replace('channel_id=3,', 'channel_id=1,')
  (kept,) = [one for one in hlo.collectives(twice) if one.kind in ('all-gather', 'reduce-scatter')]
  assert (kept.kind, kept.runs) == ('reduce-scatter', 1)


SENT = """  %sent = (f32[2,64]{1,0:T(8,128)}, u32[], token[]) send(%part, %after), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_GATHER"}
  %done = token[] send-done(%sent), channel_id=2, is_host_transfer=true
  %come = (f32[2,64]{1,0:T(8,128)}, u32[], token[]) recv(%after), channel_id=9, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_GATHER"}"""


def test_what_goes_between_slices_is_counted_by_itself():
  line = next(line for line in NESTED.splitlines() if 'all-gather' in line and ' = ' in line)
  before, after = (
    hlo.by_kind(hlo.collectives(NESTED)),
    hlo.by_kind(hlo.collectives(NESTED.replace(line, f'{line}\n{SENT}'))),
  )
  _, times, _ = before['all-gather']
  assert after == before | {'all-gather between slices': (1, times, times * 2 * 64 * 4)}


def test_sums_of_one_channel_count_each():
  """Count each sum of a shared channel.

  XLA joins the sums of `shard_map` into a few, which keep their common channel.
  """
  line = next(line for line in NESTED.splitlines() if '%scatter = ' in line)
  other = line.replace('%scatter', '%scatter.2').replace('f32[2,64]', 'f32[4,64]')
  found = [one for one in hlo.collectives(NESTED.replace(line, f'{line}\n{other}')) if one.kind == 'reduce-scatter']
  assert [one.shape for one in found] == ['f32[2,64]{1,0}', 'f32[4,64]{1,0}']


def test_loops_of_unknown_length_count_once_and_are_told():
  assert hlo.open_loops(NESTED) == 0
  unknown = NESTED.replace(', backend_config={"known_trip_count":{"n":"3"}}', '')  # the condition says `true`
  assert hlo.open_loops(unknown) == 1
  assert {one.kind: one.runs for one in hlo.collectives(unknown)}['all-gather'] == 4
  of_rows = NESTED.replace('%less = pred[] compare(%i, %limit)', '%less = pred[8]{0} compare(%rows, %limit)')
  assert hlo.open_loops(of_rows) == 1  # no counter, but a question about eight rows
  until_none = NESTED.replace('constant(4)', 'constant(0)')  # continues while something is above 0
  assert hlo.open_loops(until_none) == 1
  assert {one.kind: one.runs for one in hlo.collectives(until_none)}['all-gather'] == 3


def test_rounds_of_the_noise_are_unknown():
  """Count a loop whose rounds depend on random numbers as open."""
  rows = [jax.ShapeDtypeStruct((4, 64), dtype) for dtype in (jnp.float32, bool, bool, jnp.int32, jnp.int32)]
  select = jax.jit(jax.vmap(runs.select_in_rounds))
  assert hlo.open_loops(select.lower(*rows).compile().as_text()) == 1
  cut = jax.jit(jax.vmap(cuts.cut_by_part))
  assert hlo.open_loops(cut.lower(*rows, rows[-1]).compile().as_text()) == 1
  by_token = jax.jit(jax.vmap(cuts.cut_by_token))
  assert hlo.open_loops(by_token.lower(*rows, rows[-1]).compile().as_text()) == 0


PRODUCTS = """HloModule jit_step

%body (p: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %p = (s32[], f32[16,8]{1,0}) parameter(0)
  %x = f32[16,8]{1,0} get-tuple-element((s32[], f32[16,8]{1,0}) %p), index=1
  %w = f32[8,32]{1,0} constant({...})
  %dot = f32[16,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[16,8]{1,0}) tuple(%i, %x)
}

ENTRY %main (q: bf16[4,512,12,64]) -> bf16[4,12,512,512] {
  %q = bf16[4,512,12,64]{3,1,2,0} parameter(0)
  %loop = (s32[], f32[16,8]{1,0}) while((s32[], f32[16,8]{1,0}) %t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %kernel = bf16[4]{0} custom-call(%q), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"cost_estimate":{"flops":"700","transcendentals":"9"}}}
  %silent = bf16[4]{0} custom-call(%q), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{}}
  %other = bf16[4]{0} custom-call(%q), custom_call_target="Sharding"
  ROOT %weights = bf16[4,12,512,512]{2,3,1,0:T(8,128)(2,1)} convolution(%q, %q), window={size=4x12 stride=3x11 lhs_dilate=4x12}, dim_labels=0b1f_0o1i->01bf
}
"""


def test_operations_of_products_are_multiplied_out():
  """Count products in loops, batched products and kernels.

  The compiler writes 4 x 12 batched products as a convolution.
  """
  products = 5 * 2 * 16 * 8 * 32 + 2 * 4 * 12 * 512 * 512 * 64
  assert hlo.operations(PRODUCTS) == (products + 700, 1)


@pytest.mark.parametrize(
  ('window', 'labels', 'shapes', 'products'),
  [
    # three taps over eight places, of which one at each end meets the padding
    ('size=3 pad=1_1', 'b0f_0io->b0f', ((2, 8, 5), (3, 5, 7), (2, 8, 7)), 2 * 5 * 7 * (3 * 8 - 2)),
    # every second place
    ('size=2 stride=2', 'b0f_0io->b0f', ((2, 8, 5), (2, 5, 7), (2, 4, 7)), 2 * 5 * 7 * 8),
    # taps that stand two apart
    ('size=2 rhs_dilate=2', 'b0f_0io->b0f', ((2, 8, 5), (2, 5, 7), (2, 6, 7)), 2 * 5 * 7 * 12),
    # four batches, written the other way about
    ('size=4 stride=4 pad=3_3 lhs_dilate=3 rhs_reversal=1', '0bf_0io->0bf', ((4, 9, 5), (4, 5, 7), (4, 9, 7)), 4 * 9 * 5 * 7),
    # without a window
    ('', 'bf_io->bf', ((9, 5), (5, 7), (9, 7)), 9 * 5 * 7),
  ],
)  # fmt: skip
def test_operations_of_convolutions(window, labels, shapes, products):
  left, right, out = (f'f32[{",".join(map(str, shape))}]{{}}' for shape in shapes)
  text = (
    f'ENTRY %main (x: f32[]) -> f32[] {{\n  %x = {left} parameter(0)\n  %w = {right} parameter(1)\n'
    f'  ROOT %y = {out} convolution(%x, %w), window={{{window}}}, dim_labels={labels}\n}}'
  )
  assert hlo.operations(text) == (2 * products, 0)


def test_a_product_of_unknown_sizes_is_refused():
  with pytest.raises(ValueError, match='dot'):
    hlo.operations(PRODUCTS.replace('dot(%x, %w)', 'dot(%x, %elsewhere)'))
  with pytest.raises(ValueError, match='axes of weights'):
    hlo.operations(PRODUCTS.replace('dim_labels=', 'labels='))


def test_what_is_no_program_is_refused():
  with pytest.raises(ValueError, match='ENTRY'):
    hlo.collectives('HloModule empty')


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
def test_a_program_of_jax():
  mesh = jax.make_mesh((4,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
  cut, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (('data',), ()))

  def program(x, w):
    def layer(x, w):
      return jax.lax.with_sharding_constraint(jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole)), cut), None

    return jax.lax.scan(layer, x, w)[0].sum()

  x, w = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((5, 32, 32), jnp.float32)
  place = NamedSharding(mesh, PartitionSpec(None, 'data'))
  text = jax.jit(program, in_shardings=(cut, place)).lower(x, w).compile().as_text()
  table = hlo.by_kind(hlo.collectives(text))
  gathered = table['all-gather']
  assert gathered[2] == 5 * 32 * 32 * 4  # each layer's weights once, one by one or all at once
  assert table['all-reduce'] == (1, 1, 4)  # the sum
  assert hlo.operations(text) == (5 * 2 * 64 // 4 * 32 * 32, 0)  # of a device
