// A trace of what every rank's engine does, for Perfetto (ui.perfetto.dev).
//
//   fsdp::Trace trace(engine);          // records from here
//   … steps …
//   trace.write("trace.json");          // one file for all ranks
#pragma once

#include <fsdp/engine.h>

#include <filesystem>

namespace fsdp {

// Records the engine's spans: forwards, gathers, waits, captures of gradients, reductions, meetings
// of the ranks, gradient norms and optimizer steps on a lane each, units in backward from open to
// close, and the engine's bytes by category. A process of the trace is a rank, times are those of
// one clock (ranks of one host). About 100 bytes an event; a few events a parameter and step.
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
  EngineState& state_;
};

}  // namespace fsdp
