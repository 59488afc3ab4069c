#include "shard/shard_unit.h"

#include <fmt/format.h>

#include <utility>

#include "fsdp/error.h"

namespace fsdp {

// The order of the members matters: later members hold references to earlier ones, and
// UnitParameters may relocate main shards into its resident copies.
ShardUnit::ShardUnit(UnitContext unit, std::vector<at::Tensor> parameters, std::vector<Buffer> main,
                     bool watches_parameters)
    : context_(std::move(unit)),
      main_(context_, std::move(main)),
      parameters_(context_, main_, std::move(parameters),
                  watches_parameters ? context_.owner : nullptr),
      gradients_(context_, main_, parameters_.tensors()) {}

UnitSizes ShardUnit::sizes() const {
  UnitSizes sizes{.parameter_slot_bytes = parameters_.slot_bytes(),
                  .reduce_slot_bytes = gradients_.reduce_slot_bytes(),
                  .adding_slot_bytes = gradients_.adding_slot_bytes(),
                  .main_shard_bytes = layout().slice_numel() * size_of(DType::kFloat32),
                  .resident_bytes = parameters_.resident_bytes(),
                  .kept_gradient_bytes = gradients_.kept_bytes(),
                  .captures_in_place = gradients_.captures_in_place()};
  for (int i = 0; i < context_.segments(); ++i) {
    if (!context_.segment(i).trainable) continue;
    sizes.main_gradient_slots.push_back(gradients_.main().numel(i) * size_of(DType::kFloat32));
  }
  return sizes;
}

std::vector<MainSegment> ShardUnit::main_segments() {
  gradients_.settle();  // the user may have changed `.grad` of a view
  MainGradients& gradients = gradients_.main();
  std::vector<MainSegment> result;
  for (int i = 0; i < context_.segments(); ++i) {
    const SegmentLayout& segment = context_.segment(i);
    if (!segment.trainable) continue;
    result.push_back({.segment = i,
                      .param = main_.data(i),
                      .grad = gradients.has(i) ? gradients.slice(i) : nullptr,
                      .resident_copy = parameters_.copy_of_main(i),
                      .copy_dtype = segment.dtype,
                      .numel = segment.slice_numel});
  }
  return result;
}

const std::vector<at::Tensor>& ShardUnit::local_views() {
  if (!main_.has_views()) {
    main_.views();
    gradients_.show();
  }
  return main_.views();
}

void ShardUnit::sync_changes(bool rebinds) {
  // `possible` is read before unused views are dropped, because users may have written through
  // these views.
  const MainChange change{
      .known = main_.sync_changes(), .possible = main_.has_views(), .at_forward = rebinds};
  // If a main gradient exists, the views stay, because the user may have changed their `.grad`.
  if (!gradients_.main().are_ready()) main_.forget_unused_views();
  const bool may_differ = change.known || change.possible;
  if (rebinds && may_differ && parameters_.state() != ParameterState::kSharded) {
    parameters_.reshard();
  }
  parameters_.follow_main(change);
}

// The order matters, because main_changes compares the versions before the change.
void ShardUnit::mark_changed(bool copies_written) {
  parameters_.main_changes(copies_written);
  main_.mark_changed();
}

void ShardUnit::unfreeze(int parameter) {
  const int segment = layout().segment_of(parameter);
  if (context_.segment(segment).trainable) return;
  if (gradients_.state() != GradientState::kNone || gradients_.main().are_ready()) {
    throw StateError({.what = fmt::format("parameter '{}' was unfrozen while gradients wait for a "
                                          "step",
                                          layout().parameters()[parameter].fqn),
                      .where = name_of_unit(fqn()),
                      .hint = "call zero_grad before you unfreeze a parameter"});
  }
  // The whole segment becomes trainable. Gradients of its other parameters are zeros.
  context_.layout.make_trainable(segment);
  gradients_.make_places();
  main_.set_trainable(segment);
}

}  // namespace fsdp
