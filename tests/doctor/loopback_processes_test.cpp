#include "programs/doctor/loopback_processes.h"

#include <doctest/doctest.h>

#include <string>

namespace fsdp::doctor {
namespace {

std::string failure(const std::string& shell) {
  try {
    output_of({"/bin/sh", "-c", shell});
    return "none";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

TEST_CASE("what ranks print is read whole, from both outputs") {
  CHECK(output_of({"/bin/sh", "-c", "echo one; echo two >&2"}) == "one\ntwo\n");
  CHECK(output_of({"/bin/sh", "-c", "head -c 300000 /dev/zero"}).size() == 300000);
}

TEST_CASE("of ranks that fail the first error is told, its hint apart, or how they ended") {
  CHECK(failure("echo loading; echo 'fsdp: error[70] rank 1/2 host a: lost; hint: reset it';"
                "echo 'fsdp: error[75] rank 0/2 host a: rank 1 gave up'; exit 70") ==
        "lost; hint: reset it");
  CHECK(failure("echo 'fsdp: rank 1 is stuck: ncclGroupEnd did not return (start)'; exit 75") ==
        "ncclGroupEnd did not return (start)");
  CHECK(failure("echo nothing; exit 3") == "the ranks ended with code 3");
  CHECK(failure("kill -9 $$") == "signal 9 ended the ranks");
  CHECK(failure_of("fsdp: error[70] rank 1/2 host a: lost; hint: reset it\n", 0).hint ==
        "reset it");
  CHECK_THROWS_WITH_AS(
      output_of({"/nowhere/fsdp-run", "-n", "2"}),
      "'/nowhere/fsdp-run' cannot be started; hint: install fsdp-run in the folder of fsdp-doctor",
      DeviceError);
}

}  // namespace
}  // namespace fsdp::doctor
