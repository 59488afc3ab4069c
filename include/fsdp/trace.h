// Traces of every rank's engine for Perfetto (ui.perfetto.dev).
//
//   fsdp::Trace trace(engine);          // records from here
//   … steps …
//   trace.write("trace.json");          // one file for all ranks
#pragma once

#include <fsdp/engine.h>

#include <cstdint>
#include <filesystem>

namespace fsdp {

// A recorder of the engine's spans: training steps; input (InputSpan); forwards, gathers, waits,
// captures of gradients, reductions, barriers, gradient norms and optimizer steps, each in a lane;
// units in backward from open to close; and the engine's bytes by category. A step ends with its
// optimizer's step, or for an optimizer of LibTorch's with the next forward that finds no
// gradients. Each rank is a process of the trace; times are of one clock (ranks of one host). An
// event takes about 100 bytes; a step has a few per parameter.
// Requires: the engine outlives it.
class Trace {
 public:
  // Waits for the engine's streams, so that the trace contains no earlier work.
  explicit Trace(Engine& engine);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Checks, before a long run, that a trace can be written to `file`; creates the file if it is
  // missing.
  // Errors: IoError (73).
  static void check_file(const std::filesystem::path& file);

  // Writes all ranks' records so far in Chrome's JSON format. Rank 0 writes.
  // Requires: collective; outside forward and backward. Errors: IoError (73 or 74) on rank 0.
  void write(const std::filesystem::path& file) const;

 private:
  EngineParts& state_;
};

// A span "input" in the engine's traces: the time in which the rank's thread gets a batch.
// BatchTransfer makes its own.
//   { const fsdp::InputSpan span(engine); batch = prefetcher.next(); }
class InputSpan {
 public:
  // Requires: the engine outlives it.
  explicit InputSpan(const Engine& engine);
  ~InputSpan();
  InputSpan(const InputSpan&) = delete;
  InputSpan& operator=(const InputSpan&) = delete;

 private:
  EngineParts& state_;
  int64_t begin_ns_ = 0;  // 0: no trace was running
};

}  // namespace fsdp
