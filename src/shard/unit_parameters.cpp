#include "shard/unit_parameters.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

std::string_view name_of(ParameterState state) {
  switch (state) {
    case ParameterState::kSharded:
      return "sharded";
    case ParameterState::kGathering:
      return "gathering";
    case ParameterState::kUnsharded:
      return "unsharded";
  }
  return "unknown";
}

}  // namespace

UnitParameters::UnitParameters(const UnitContext& unit, MainShards& main,
                               std::vector<at::Tensor> tensors, touch_trap::Touched* owner)
    : unit_(unit),
      main_(main),
      bindings_(unit.layout, std::move(tensors), unit.fqn, owner),
      usual_(make_parameter_source(unit, main)),
      own_copy_(make_own_copy_source(unit, main, *usual_)),
      source_(usual_.get()) {}

void UnitParameters::require(ParameterState expected, std::string_view transition) const {
  if (state_ == expected) return;
  throw StateError({.what = fmt::format("{} of a unit that is {}, expected a unit that is {}",
                                        transition, name_of(state_), name_of(expected)),
                    .where = name_of_unit(unit_.fqn)});
}

bool UnitParameters::unshard(Urgency urgency) {
  require(ParameterState::kSharded, "unshard");
  // The state changes only after the gather was issued. If a prefetch finds no slot, the unit stays
  // sharded.
  if (!usual_->begin(urgency)) return false;
  source_ = usual_.get();
  state_ = ParameterState::kGathering;
  return true;
}

void UnitParameters::unshard_own_copy() {
  require(ParameterState::kSharded, "unshard");
  source_ = own_copy_ ? own_copy_.get() : usual_.get();
  // The caller may have written main shards since the last pass began, so the gather must wait for
  // the compute stream.
  unit_.shared.streams.gather_after_compute();
  source_->begin(Urgency::kDemand);
  state_ = ParameterState::kGathering;
}

void UnitParameters::wait_for_unshard() {
  require(ParameterState::kGathering, "wait_for_unshard");
  source_->wait();
  check_bindings();
  bind();
  state_ = ParameterState::kUnsharded;
}

// Unbinds the parameters before it releases their memory, so that no access can reach released
// memory.
void UnitParameters::reshard() {
  if (state_ == ParameterState::kSharded) require(ParameterState::kUnsharded, "reshard");
  bindings_.unbind();
  source_->end(/*waited=*/state_ == ParameterState::kUnsharded);
  state_ = ParameterState::kSharded;
}

void UnitParameters::bind() {
  places_.clear();
  for (int i = 0; i < unit_.segments(); ++i) places_.push_back(source_->whole(i));
  bindings_.bind(places_);
}

// Refuses a parameter whose storage the user has replaced, because it would not see the gathered
// values.
void UnitParameters::check_bindings() const {
  const std::optional<int> replaced = bindings_.first_replaced();
  if (!replaced) return;
  throw StateError({.what = fmt::format("parameter '{}' got other storage after the engine was "
                                        "made (to(), set_data, or an assignment to .data)",
                                        unit_.layout.parameters()[*replaced].fqn),
                    .where = name_of_unit(unit_.fqn),
                    .hint =
                        "choose dtype and device through fsdp::Options, and load values through "
                        "fsdp::Gathered or Engine::sharded_parameters"});
}

std::string UnitParameters::first_written() {
  // take_stray_write is called even if a changed version is found below, because it also undoes the
  // write.
  const std::optional<int> stray = source_->take_stray_write();
  std::optional<int> written = bindings_.first_changed();
  if (!written) written = stray;
  if (!written) written = bindings_.first_replaced();
  return written ? unit_.layout.parameters()[*written].fqn : std::string();
}

void UnitParameters::take_kept_writes() {
  if (!bindings_.first_changed()) return;
  main_.keep_writes();
  bindings_.forget_changes();
}

// Broadcasts rank 0's flags of changed parameters, then the values of these parameters. Ranks may
// have written different parameters, so all ranks form the second collective from rank 0's flags.
void UnitParameters::broadcast_changed(std::vector<uint8_t>& changed) const {
  ShardContext& shared = unit_.shared;
  if (shared.comms.one_rank() || changed.empty()) return;
  const auto from_zero = [&](const std::vector<CollectivePart>& parts) {
    // The host blocks here, because `flags` is LibTorch's tensor and is freed on return, even if a
    // collective throws.
    shared.streams.settle(*shared.streams.gather, [&] {
      shared.streams.gather_after_compute();
      shared.comms.gather().broadcast(parts, 0, unit_.next_tag(Operation::kBroadcast, 0),
                                      *shared.streams.gather);
    });
  };
  const at::Tensor flags =
      at::from_blob(changed.data(), {static_cast<int64_t>(changed.size())},
                    at::TensorOptions().dtype(at::kByte))
          .to(shared.streams.torch_device, /*non_blocking=*/false, /*copy=*/true);
  from_zero({{flags.data_ptr(), flags.data_ptr(), flags.numel(), DType::kUInt8}});
  const at::Tensor known = flags.to(at::kCPU);
  changed.assign(known.const_data_ptr<uint8_t>(), known.const_data_ptr<uint8_t>() + flags.numel());
  std::vector<CollectivePart> values;
  for (size_t i = 0; i < changed.size(); ++i) {
    if (!changed[i]) continue;
    const at::Tensor& parameter = tensors()[i];
    void* data = parameter.data_ptr();
    values.push_back({data, data, static_cast<int64_t>(parameter.nbytes()), DType::kUInt8});
  }
  if (!values.empty()) from_zero(values);
}

void UnitParameters::write_back(bool from_rank_zero) {
  require(ParameterState::kUnsharded, "write_back");
  bindings_.adopt_replaced();
  // Ranks that hold the same slice must get the same values, which are those of rank 0 or of the
  // first group.
  from_rank_zero = from_rank_zero || !unit_.collectives.cuts_main();
  const bool from_first_group = !from_rank_zero;
  std::vector<uint8_t> changed(tensors().size());
  for (size_t i = 0; i < changed.size(); ++i) {
    changed[i] = bindings_.has_changed(static_cast<int>(i)) ? 1 : 0;
  }
  if (from_rank_zero) broadcast_changed(changed);
  std::vector<kernels::CastRun> runs;
  for (size_t i = 0; i < changed.size(); ++i) {
    const Interval& local = main_.local(static_cast<int>(i));
    if (!changed[i] || local.numel == 0) continue;
    const int segment = unit_.layout.segment_of(static_cast<int>(i));
    const DType dtype = unit_.segment(segment).dtype;
    const auto* values = static_cast<const std::byte*>(tensors()[i].const_data_ptr());
    const std::byte* source = values + local.begin * size_of(dtype);
    auto* place = reinterpret_cast<std::byte*>(main_.data(segment) + local.offset);
    // If the parameter is bound to the main shard itself, the main shard already has the new
    // values.
    if (source != place) runs.push_back({source, place, local.numel, dtype, DType::kFloat32});
  }
  unit_.shared.hold.wait();
  kernels::cast_pack(*unit_.shared.streams.compute, runs);
  unit_.shared.main->settle_compute();
  if (from_first_group) main_.share_slices();
  bindings_.forget_changes();
  main_changes(/*copies_written=*/false);
  main_.mark_changed();
}

// Because the version increases, the backward of a graph that saved the parameter before the change
// throws. The increase is not a write by the user, so the bindings forget it at once.
void UnitParameters::follow_main(const MainChange& change) {
  if (change.known) {
    for (const at::Tensor& parameter : tensors()) torch_compat::bump_version(parameter);
    bindings_.forget_changes();
  }
  usual_->follow_main(change);
}

}  // namespace fsdp
