// Why there is or is not a CUDA device: asks the CUDA runtime and driver that are loaded, without their headers.
//
// Same conventions as bridge.cpp: nullptr, or a message allocated with malloc that the caller frees.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

// The runtime is in the process only if libtorch_cuda was linked; its functions are then found by name.
template <typename F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

}  // namespace

extern "C" {

// Whether the CUDA runtime is loaded; if so, what it answers when asked for devices: 0 is success.
int weince_cuda_runtime(int* status, int* devices) {
  auto count = symbol<int (*)(int*)>(RTLD_DEFAULT, "cudaGetDeviceCount");
  if (!count) return 0;
  *status = count(devices);
  return 1;
}

// The runtime's words for a status; the caller frees them.
char* weince_cuda_error(int status) {
  auto text = symbol<const char* (*)(int)>(RTLD_DEFAULT, "cudaGetErrorString");
  return strdup(text ? text(status) : "unknown CUDA error");
}

// Name, compute capability and memory in bytes of a device, from the driver.
char* weince_cuda_device(int index, char** name, int* major, int* minor, size_t* memory) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (!driver) return strdup(dlerror());
  auto init = symbol<int (*)(unsigned)>(driver, "cuInit");
  auto get = symbol<int (*)(int*, int)>(driver, "cuDeviceGet");
  auto get_name = symbol<int (*)(char*, int, int)>(driver, "cuDeviceGetName");
  auto attribute = symbol<int (*)(int*, int, int)>(driver, "cuDeviceGetAttribute");
  auto total = symbol<int (*)(size_t*, int)>(driver, "cuDeviceTotalMem_v2");
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  int device = 0;
  char buffer[256] = {0};
  const char* failed = nullptr;
  if (!init || !get || !get_name || !attribute || !total) {
    failed = "libcuda.so.1 lacks a function of CUDA 3.2 or later";
  } else if (init(0) || get(&device, index) || get_name(buffer, sizeof(buffer) - 1, device) ||
             attribute(major, kMajor, device) || attribute(minor, kMinor, device) || total(memory, device)) {
    failed = "the CUDA driver does not describe the device";
  }
  dlclose(driver);
  if (failed) return strdup(failed);
  *name = strdup(buffer);
  return nullptr;
}

}  // extern "C"
