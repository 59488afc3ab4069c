// MainStateHold lets main state be copied while the training continues: code that writes main state
// waits for the copies.
#pragma once

#include <cstdint>
#include <memory>

#include "base/code_place.h"
#include "runtime/stream.h"
#include "shard/main_place.h"

namespace fsdp {

// The copies run on a stream of their own. All code that writes main shards or moments calls wait()
// first: optimizers, averages (Ema), loads, the write-back of fsdp::Gathered and MainShards::views.
// Copies of memory that other code writes, too, need a wait() directly after them
// (ShardUnit::main_has_other_writers).
//
// Not thread-safe: the engine's mutex guards it. Other threads may synchronize the events.
class MainStateHold {
 public:
  // `main` must outlive this object.
  explicit MainStateHold(const MainPlace& main) : main_(main) {}
  ~MainStateHold();  // blocks until the copies are done
  MainStateHold(const MainStateHold&) = delete;
  MainStateHold& operator=(const MainStateHold&) = delete;

  // Issues a copy of main state to pinned host memory. The copy begins after the work that was
  // issued to MainPlace::stream() before the first copy since end() (wait 21).
  void copy(void* to, const void* from, int64_t bytes);
  // Ends the copies that were issued since the last end(). Returns an event that is reached when
  // they are done.
  Event end();
  // Makes work that is issued to MainPlace::stream() after this call wait for all ended copies
  // (wait 22). If this stream is inline, blocks the caller.
  void wait(CodePlace place = CodePlace::current());
  // Does the same for `writer`, a stream for which MainPlace::stream() waits before its next work.
  void wait(Stream& writer, CodePlace place = CodePlace::current());
  // The time for which wait() has blocked its callers.
  int64_t waited_ns() const { return waited_ns_; }

 private:
  const MainPlace& main_;
  std::unique_ptr<Stream> stream_;  // made by the first copy
  Event copied_{main_.stream().device()};
  bool has_begun_ = false;  // copies were issued since end()
  bool is_held_ = false;    // copies have ended for which no writer waits yet
  int64_t waited_ns_ = 0;
};

}  // namespace fsdp
