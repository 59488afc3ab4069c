// Checks whether this host can reach an address. Used for error messages and by fsdp-doctor.
#pragma once

#include <chrono>
#include <string>

namespace fsdp {

// The result of an attempt to connect, with a description.
struct Reach {
  bool resolves = false;
  std::string text;  // "nothing listens at node0 (10.0.0.5) on port 29500"
  std::string hint;
};
// Tries to connect. After the name is resolved, waits at most `at_most` for the connection.
Reach reach_of(const std::string& host, int port, std::chrono::milliseconds at_most);

}  // namespace fsdp
