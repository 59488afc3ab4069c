// MainCopies: copies of main shards that run beside a training.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/error.h>

#include <vector>

#include "engine/engine_parts.h"
#include "runtime/device.h"

namespace fsdp::testing {

// Copies main shards in the way of a save in the background (MainStateHold). Destroyed before the
// engine.
class MainCopies {
 public:
  explicit MainCopies(Engine& engine) : engine_(state_of(engine)) {}
  // Waits for the copies, because they are freed after this. If waiting fails, the device is lost
  // and writes no more.
  ~MainCopies() {
    try {
      engine_.context->hold.wait();
      engine_.context->main->stream().synchronize();
    } catch (const DeviceError&) {
    }
  }

  // Begins copies of all main shards. The next writer of main state waits for them. Copies of
  // shards that user code may write are waited for at once, as StagedShard does.
  void make() {
    for (const bool at_once : {true, false}) {
      bool copies = false;
      for (const auto& unit : engine_.model.units) {
        const ShardUnit& shard = *unit->shard;
        if (shard.main_has_other_writers() != at_once) continue;
        copy(shard);
        copies = true;
      }
      if (copies) engine_.context->hold.end();
      if (copies && at_once) engine_.context->hold.wait();
    }
  }

 private:
  void copy(const ShardUnit& shard) {
    const MainShards& main = shard.main();
    for (int i = 0; i < static_cast<int>(shard.layout().segments().size()); ++i) {
      copies_.push_back(
          engine_.context->streams.device.allocate(main.bytes(i), MemoryKind::kPinned));
      engine_.context->hold.copy(copies_.back().data(), main.data(i), main.bytes(i));
    }
  }

  EngineParts& engine_;
  std::vector<Buffer> copies_;
};

}  // namespace fsdp::testing
