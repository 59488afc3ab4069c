// StopSignals: records SIGINT, SIGTERM and SIGUSR1, which would otherwise end the process.
// LostSteps: tells the user of a run without checkpoints what Ctrl-C loses.
#pragma once

#include <cstdint>

namespace fsdp {

// The signals that a process got. While a StopSignals object exists, SIGINT, SIGTERM and SIGUSR1
// are recorded and do not end the process, unless the program handles them itself. A second SIGINT
// or SIGTERM ends the process at once with 130 or 143. It counts as the same request if it arrives
// within a second of the first one and may be a launcher's copy: a SIGTERM, or a SIGINT under a
// launcher. The last destructor restores the handlers. Thread-safe.
class StopSignals {
 public:
  enum class Request : uint8_t { kNone, kSave, kStop };

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns kStop if a SIGINT or SIGTERM has arrived. Otherwise returns kSave if a SIGUSR1 has
  // arrived since the last forget_save(), and kNone if not.
  Request request() const;
  // Clears the request kSave. Called after a save.
  void forget_save();
};

// While a LostSteps object exists, SIGINT first prints to stderr how many steps are lost, and then
// ends the process as usual. If the program or another object handles SIGINT already, the object
// does nothing.
class LostSteps {
 public:
  LostSteps();
  ~LostSteps();
  LostSteps(const LostSteps&) = delete;
  LostSteps& operator=(const LostSteps&) = delete;

  // Sets the number of steps that are lost if the process ends now.
  void set(int64_t steps);

 private:
  bool is_installed_;
};

}  // namespace fsdp
