// Runs a function in a child process, and returns how that process ended.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "simulator/guarded_memory.h"

namespace fsdp::testing {

struct End {
  int signal = 0;
  std::string said;  // on stderr
};

inline End in_child(const std::function<void()>& act) {
  std::array<int, 2> pipe_ends;
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    signal(SIGSEGV, SIG_DFL);  // replaces doctest's handler
    GuardedMemory::instance().watch();
    act();
    _exit(0);
  }
  close(pipe_ends[1]);
  End end;
  std::array<char, 4096> text;
  for (ssize_t got; (got = read(pipe_ends[0], text.data(), text.size())) > 0;) {
    end.said.append(text.data(), static_cast<size_t>(got));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return end;
}

}  // namespace fsdp::testing
