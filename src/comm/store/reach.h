// Whether an address can be reached from here: for errors, and for fsdp-doctor.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fsdp {

struct ResolvedName {
  std::vector<std::string> addresses;  // "10.0.0.5"
  std::string why_none;                // in the system's words; empty where there are some
};
// Blocks as long as the system's resolver does.
ResolvedName resolve(const std::string& host);

struct Reach {
  bool resolves = false;
  std::string text;  // "nothing listens at node0 (10.0.0.5) on port 29500"
  std::string hint;
};
// Tries to connect, for at most that long after the name is resolved.
Reach reach_of(const std::string& host, int port, std::chrono::milliseconds at_most);

}  // namespace fsdp
