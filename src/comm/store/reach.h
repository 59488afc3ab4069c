// Checks whether an address can be reached from this host: for errors, and for fsdp-doctor.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fsdp {

// The addresses of a host name.
struct ResolvedName {
  std::vector<std::string> addresses;  // "10.0.0.5"
  std::string why_none;                // in the system's words; empty if there are addresses
};
// Resolves a host name. Blocks as long as the system's resolver does.
ResolvedName resolve(const std::string& host);

// The result of an attempt to connect, in words.
struct Reach {
  bool resolves = false;
  std::string text;  // "nothing listens at node0 (10.0.0.5) on port 29500"
  std::string hint;
};
// Tries to connect, for `at_most` after the name is resolved.
Reach reach_of(const std::string& host, int port, std::chrono::milliseconds at_most);

}  // namespace fsdp
