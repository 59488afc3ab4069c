// A trace of what every rank's engine does, for Perfetto (ui.perfetto.dev).
//
//   fsdp::Trace trace(engine);          // records from here
//   … steps …
//   trace.write("trace.json");          // one file for all ranks
#pragma once

#include <fsdp/engine.h>

#include <cstdint>
#include <filesystem>

namespace fsdp {

// Records the engine's spans: training steps, each to the end of its optimizer's step (of an
// optimizer of LibTorch's: to the next forward that finds no gradients); input (InputSpan);
// forwards, gathers, waits, captures of gradients, reductions, meetings of the ranks, gradient
// norms and optimizer steps on a lane each, units in backward from open to close, and the engine's
// bytes by category. A process of the trace is a rank, times are those of one clock (ranks of one
// host). About 100 bytes an event; a few events a parameter and step.
// Requires: the engine outlives it.
class Trace {
 public:
  // Waits for the engine's streams, so that nothing issued earlier is recorded.
  explicit Trace(Engine& engine);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Whether a trace can be written there, before a long run. Makes the file if it is missing.
  // Errors: IoError (73).
  static void check_file(const std::filesystem::path& file);

  // Writes what all ranks have recorded so far, in Chrome's JSON format. Rank 0 writes.
  // Requires: collective; outside forward and backward. Errors: IoError (73 or 74) on rank 0.
  void write(const std::filesystem::path& file) const;

 private:
  EngineParts& state_;
};

// The time in which the rank's thread gets a batch, from construction to destruction, as a span
// "input" of the engine's traces. BatchTransfer makes its own.
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
  int64_t begin_ns_ = 0;  // 0: no trace is taken
};

}  // namespace fsdp
