// StopSignals: records SIGTERM and SIGUSR1, which would otherwise end the process.
#pragma once

#include <cstdint>

namespace fsdp {

// The signals that a process got. While a StopSignals object exists, SIGTERM and SIGUSR1 are
// recorded and do not end the process, unless the program handles them itself. A second SIGTERM, at
// least a second after the first one, ends the process at once with 143. The last destructor
// restores the handlers. Thread-safe.
class StopSignals {
 public:
  enum class Request : uint8_t { kNone, kSave, kStop };

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns kStop if a SIGTERM has arrived. Otherwise returns kSave if a SIGUSR1 has arrived since
  // the last forget_save(), and kNone if not.
  Request request() const;
  // Clears the request kSave. Called after a save.
  void forget_save();
};

}  // namespace fsdp
