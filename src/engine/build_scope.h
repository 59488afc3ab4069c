// The state of a BuildScope until an engine is made from the scope. Private to the engine layer.
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

// A unit that was sharded when its constructor returned. Its parameters have unreadable storage
// until an engine binds the unit.
struct BuiltUnit {
  std::vector<FoundParameter> parameters;
  ShardLayout layout;
  std::vector<Buffer> main;
};

// The private members of a BuildScope.
struct BuildState {
  BuildState(Mesh mesh, Options options);
  ~BuildState();

  // Shard a unit that was just constructed, and drop a unit that is destroyed. The constructor and
  // destructor of every unit call them. Outside a scope they do nothing.
  static void shard_if_building(const UnitBase& unit, torch::nn::Module& module);
  static void forget_if_building(const UnitBase& unit);
  // Ends construction. Afterwards other thread ranks may build, and this rank draws its own random
  // numbers.
  void finish();

  Mesh mesh;
  Options options;
  // The engine's dtypes. A unit's own dtypes (Options::unit_options) depend on its name, and units
  // have no names while the scope is open.
  const Precision precision;
  std::unique_ptr<ShardContext> context;
  // The sharded units. The key (key_of) is the address of the unit's UnitBase. For a unit chosen by
  // policy, it is the address of the unit's first module.
  std::unordered_map<const void*, BuiltUnit> units;
  bool finished = false;

  // Returns the address that is the unit's key in `units`.
  static const void* key_of(const FoundUnit& unit);
  bool has(const FoundUnit& unit) const { return units.contains(key_of(unit)); }
  void shard(const void* unit, torch::nn::Module& module);

 private:
  void forget(const UnitBase& unit);

  std::unordered_set<const c10::TensorImpl*> sharded_;  // parameters of `units`
  // A lock that is held while the scope is open. All threads share LibTorch's default generator, so
  // thread ranks build one after another.
  std::unique_lock<std::mutex> building_;
  std::optional<CollectiveSequence::Alone> alone_;  // held while building_ is locked
  std::optional<DefaultDevice> default_device_;
};

// Returns a parameter's shape, strides and types for the layout. `param_dtype` is the unit's type;
// if it is empty, the parameter keeps its constructed type.
ParameterSpec spec_of(const FoundParameter& found, const std::optional<DType>& param_dtype);
// Returns this rank's fp32 slices of the parameters: slice number `main_rank` of each segment, read
// from the parameters' current storage.
std::vector<Buffer> slice_parameters(const ShardLayout& layout, int main_rank,
                                     const std::vector<FoundParameter>& parameters,
                                     ShardContext& context);

}  // namespace fsdp
