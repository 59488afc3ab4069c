// Checks whether this host can reach an address. Used for error messages and by fsdp-doctor.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fsdp {

// The addresses of a host name.
struct ResolvedName {
  std::vector<std::string> addresses;  // "10.0.0.5"
  std::string why_none;                // the system's message; empty if there are addresses
};
// Resolves a host name. Blocks until the system's resolver returns.
ResolvedName resolve(const std::string& host);

// The result of an attempt to connect, with a description.
struct Reach {
  bool resolves = false;
  std::string text;  // "nothing listens at node0 (10.0.0.5) on port 29500"
  std::string hint;
};
// Tries to connect. After the name is resolved, waits at most `at_most` for the connection.
Reach reach_of(const std::string& host, int port, std::chrono::milliseconds at_most);

}  // namespace fsdp
