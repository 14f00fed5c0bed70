// WrapDegrees: angles in degrees, wrapped into -180 to 180, for any shape of FLOAT.

#include <onnxruntime_c_api.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

const OrtApi* ort = nullptr;

OrtStatus* Compute(void*, OrtKernelContext* context) {
  const OrtValue* input = nullptr;
  if (OrtStatus* status = ort->KernelContext_GetInput(context, 0, &input)) return status;

  OrtTensorTypeAndShapeInfo* info = nullptr;
  if (OrtStatus* status = ort->GetTensorTypeAndShape(input, &info)) return status;
  size_t axes = 0, count = 0;
  OrtStatus* status = ort->GetDimensionsCount(info, &axes);
  std::vector<int64_t> shape(axes);
  if (!status) status = ort->GetDimensions(info, shape.data(), axes);
  if (!status) status = ort->GetTensorShapeElementCount(info, &count);
  ort->ReleaseTensorTypeAndShapeInfo(info);
  if (status) return status;

  OrtValue* output = nullptr;
  if (OrtStatus* failed = ort->KernelContext_GetOutput(context, 0, shape.data(), axes, &output)) {
    return failed;
  }
  void *from = nullptr, *to = nullptr;
  if (OrtStatus* failed = ort->GetTensorMutableData(const_cast<OrtValue*>(input), &from)) return failed;
  if (OrtStatus* failed = ort->GetTensorMutableData(output, &to)) return failed;
  for (size_t i = 0; i < count; ++i) {
    static_cast<float*>(to)[i] = std::remainder(static_cast<float*>(from)[i], 360.0f);
  }
  return nullptr;
}

OrtCustomOp WrapDegrees() {
  OrtCustomOp op{};  // what is not set below has its default
  op.version = ORT_API_VERSION;
  op.GetName = [](const OrtCustomOp*) { return "WrapDegrees"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputTypeCount = op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op.GetInputType = op.GetOutputType = [](const OrtCustomOp*, size_t) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  };
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) {
    return INPUT_OUTPUT_REQUIRED;
  };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1000; };
  op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel) {
    *kernel = nullptr;  // it keeps nothing between runs
    return static_cast<OrtStatus*>(nullptr);
  };
  op.KernelDestroy = [](void*) {};
  op.KernelComputeV2 = Compute;
  return op;
}

}  // namespace

// ONNX Runtime calls this once for each session.
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  static const OrtCustomOp op = WrapDegrees();
  static OrtCustomOpDomain* domain = nullptr;
  if (!domain) {
    ort = base->GetApi(ORT_API_VERSION);
    if (OrtStatus* status = ort->CreateCustomOpDomain("cohort.example", &domain)) return status;
    if (OrtStatus* status = ort->CustomOpDomain_Add(domain, &op)) return status;
  }
  return ort->AddCustomOpDomain(options, domain);
}
