#include "checkpoint/unit_parts.h"

#include <cstddef>
#include <utility>

namespace fsdp {
namespace {

// Sets the number of ranks that hold the same slice, and this rank's number among them.
void set_holders(const UnitCollectives& collectives, int world_size, int rank, StatePart& part) {
  part.holders = 0;
  for (int other = 0; other < world_size; ++other) {
    if (collectives.main_rank(other) != collectives.main_rank(rank)) continue;
    if (other == rank) part.holder = part.holders;
    ++part.holders;
  }
}

}  // namespace

void visit_unit_parameters(const EngineParts& engine,
                           const std::function<void(const UnitParameter&)>& visit) {
  for (const auto& unit : engine.model.units) {
    const ShardUnit& shard = *unit->shard;
    for (size_t i = 0; i < shard.layout().parameters().size(); ++i) {
      const int parameter = static_cast<int>(i);
      visit({*unit, parameter, shard.layout().parameters()[i], shard.main().local(parameter)});
    }
  }
}

StatePart part_of(const EngineParts& engine, const UnitParameter& parameter, std::string name,
                  float* data) {
  StatePart part{.name = std::move(name),
                 .other_names = {},
                 .dtype = StoredDType::kF32,
                 .shape = parameter.spec.shape,
                 .strides = parameter.spec.strides,
                 .begin = parameter.local.begin,
                 .numel = parameter.local.numel,
                 .data = reinterpret_cast<std::byte*>(data),
                 .stream = &engine.context->main->stream(),
                 .is_on_device = !engine.context->main->is_host() &&
                                 !engine.context->streams.torch_device.is_cpu(),
                 .hold = &engine.context->hold,
                 .must_be_finite = true};
  const Mesh& mesh = engine.context->mesh;
  set_holders(parameter.unit.shard->collectives(), mesh.world_size(), mesh.rank(), part);
  return part;
}

}  // namespace fsdp
