// What a BuildScope keeps until an engine takes it. Private to the engine layer.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/module_walk.h"
#include "fsdp/engine.h"
#include "libtorch/default_device.h"
#include "plan/shard_layout.h"
#include "shard/precision.h"
#include "shard/shard_context.h"

namespace fsdp {

// A unit that was sharded when its constructor returned; its parameters wait on unreadable storage.
struct BuiltUnit {
  std::vector<FoundParameter> parameters;
  ShardLayout layout;
  std::vector<Buffer> main;
};

struct BuildState {
  BuildState(Mesh mesh, Options options);
  ~BuildState();

  // Every unit's constructor and destructor come here; they do nothing outside a scope.
  static void shard_if_building(const UnitBase& unit, torch::nn::Module& module);
  static void forget_if_building(const UnitBase& unit);
  // Construction is over: other thread ranks may build, random numbers become this rank's own.
  void finish();

  Mesh mesh;
  Options options;
  const Precision precision;  // of parts that have no name yet
  std::unique_ptr<ShardContext> context;
  // By UnitBase, or module of a unit by policy.
  std::unordered_map<const void*, BuiltUnit> units;
  bool finished = false;

  static const void* key_of(const FoundUnit& unit);
  bool has(const FoundUnit& unit) const { return units.contains(key_of(unit)); }
  void shard(const void* unit, torch::nn::Module& module);

 private:
  void forget(const UnitBase& unit);

  std::unordered_set<const c10::TensorImpl*> sharded_;  // parameters of `units`
  // LibTorch's default generator is one for all threads: thread ranks build one after another.
  std::unique_lock<std::mutex> building_;
  std::optional<CollectiveSequence::Alone> alone_;  // while it is locked
  std::optional<DefaultDevice> default_device_;
};

// Shape, strides and types of a parameter as the layout wants them.
ParameterSpec spec_of(const FoundParameter& found, const std::optional<DType>& param_dtype);
// This rank's fp32 slices of the parameters, read from their present storage; `main_rank`: which.
std::vector<Buffer> slice_parameters(const ShardLayout& layout, int main_rank,
                                     const std::vector<FoundParameter>& parameters,
                                     ShardContext& context);

}  // namespace fsdp
