// Records traces of the engines of all ranks, for Perfetto (ui.perfetto.dev).
//
//   fsdp::Trace trace(engine);          // records from here
//   … steps …
//   trace.write("trace.json");          // one file for all ranks
#pragma once

#include <fsdp/engine.h>

#include <cstdint>
#include <filesystem>

namespace fsdp {

// A recorder of an engine's spans. The trace shows these lanes: training steps; input (InputSpan);
// forwards, gathers, waits, captures of gradients, reductions, barriers, gradient norms, optimizer
// steps; for each unit, the time of its backward; and the engine's bytes by category. A step ends
// with its optimizer's step. With an optimizer of LibTorch, a step ends at the first forward after
// the gradients were cleared. Each rank is a process in the trace. Times of ranks on one host use
// the same clock. Each recorded event needs about 100 bytes of memory, and a step has a few events
// per parameter.
// Requires: the engine outlives the trace.
class Trace {
 public:
  // Waits for the engine's streams, so that the trace contains no earlier work, and begins to
  // record.
  explicit Trace(Engine& engine);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Checks that a trace can be written to `file`; call it before a long run. Creates the file if it
  // does not exist.
  // Errors: IoError (73).
  static void check_file(const std::filesystem::path& file);

  // Writes the records of all ranks so far in Chrome's JSON format. Only rank 0 writes.
  // Requires: collective; outside forward and backward.
  // Errors: IoError (73 or 74) on rank 0.
  void write(const std::filesystem::path& file) const;

 private:
  EngineParts& state_;
};

// A span "input" in the engine's traces: the time in which the rank's thread waits for a batch or
// makes a batch. BatchTransfer makes these spans itself.
//   { const fsdp::InputSpan span(engine); batch = prefetcher.next(); }
class InputSpan {
 public:
  // Requires: the engine outlives the span.
  explicit InputSpan(const Engine& engine);
  ~InputSpan();
  InputSpan(const InputSpan&) = delete;
  InputSpan& operator=(const InputSpan&) = delete;

 private:
  EngineParts& state_;
  int64_t begin_ns_ = 0;  // 0: no trace was running
};

}  // namespace fsdp
